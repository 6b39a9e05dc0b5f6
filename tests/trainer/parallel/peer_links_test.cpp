// Tensors between devices: whole, matched, ordered, and under way while both sides compute.
#include "trainer/parallel/peer_links.h"

#include "tests/support/errors.h"
#include "tests/trainer/parallel/devices_test.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>

namespace swapline::trainer {
namespace {

using swapline::testing::keep_busy;
using swapline::testing::message_of;
using swapline::testing::same_bits;
using ::testing::HasSubstr;

constexpr Parcel kParcel{Transfer::Kind::kActivation, 1, 0, 0};
constexpr int64_t kMany = int64_t{1} << 20;  // elements whose copy takes 0.4 ms

class PeerLinksTest : public DevicesTest {
 protected:
  void expect(PeerLinks& links, const Parcel& parcel, at::IntArrayRef sizes) {
    links.expect(parcel, /*from=*/0, /*to=*/1, sizes, at::kFloat);
  }
  size_t live_on(size_t device) { return device_at(device).memory().bytes_by_use[0]; }
};

TEST_F(PeerLinksTest, ATensorArrivesWholeWhoeverComesFirst) {
  for (const bool receiver_first : {true, false}) {
    SCOPED_TRACE(receiver_first);
    PeerLinks links(first_devices(2));
    const at::Tensor sent = random_on(0, {33, 29}, 1);
    if (receiver_first) {
      expect(links, kParcel, {33, 29});
      EXPECT_FALSE(links.is_sent(kParcel));
    }
    links.send(kParcel, 0, sent);
    EXPECT_TRUE(links.is_sent(kParcel));
    if (!receiver_first) {
      expect(links, kParcel, {33, 29});
      EXPECT_TRUE(links.is_sent(kParcel));
    }
    const at::Tensor received = links.receive(kParcel);
    EXPECT_EQ(received.device(), device_at(1).torch_device());
    EXPECT_TRUE(same_bits(received, sent));
    EXPECT_FALSE(links.is_sent(kParcel));
    links.finish();
  }
}

TEST_F(PeerLinksTest, EachReceiverGetsItsOwnInAnyOrder) {
  std::vector<Parcel> parcels;
  for (const auto kind : {Transfer::Kind::kActivation, Transfer::Kind::kGradient}) {
    for (const int microbatch : {0, 1}) {
      for (const int lane : {0, 1}) {
        parcels.push_back({kind, 1, microbatch, lane});
      }
    }
  }
  PeerLinks links(first_devices(2));
  std::vector<at::Tensor> sent;
  for (size_t i = 0; i < parcels.size(); ++i) {
    sent.push_back(random_on(0, {5, 7}, i));
    if (i % 2 == 0) {
      expect(links, parcels[i], {5, 7});
    }
  }
  for (size_t i = parcels.size(); i-- > 0;) {
    links.send(parcels[i], 0, sent[i]);
  }
  for (size_t i = 1; i < parcels.size(); i += 2) {
    expect(links, parcels[i], {5, 7});
  }
  for (size_t i : {3, 0, 7, 1, 6, 2, 5, 4}) {
    EXPECT_TRUE(same_bits(links.receive(parcels[i]), sent[i])) << i;
  }
  links.finish();
}

TEST_F(PeerLinksTest, TheSendersMemoryIsKeptUntilItsCopyIsDone) {
  PeerLinks links(first_devices(2));
  at::Tensor sent = random_on(0, {kMany}, 1);
  const at::Tensor expected = sent.cpu();
  const void* place = sent.const_data_ptr();
  expect(links, kParcel, {kMany});
  links.send(kParcel, 0, std::move(sent));
  sent.reset();
  const auto live = live_on(0);
  links.begin_action(0);
  EXPECT_EQ(live_on(0), live);
  const at::Tensor meanwhile = at::full({kMany}, 1.0F, expected.options().device(device()));
  EXPECT_NE(meanwhile.const_data_ptr(), place);
  links.begin_action(0);
  EXPECT_EQ(live_on(0), live);  // one went and one came
  const at::Tensor later = at::full({kMany}, 2.0F, expected.options().device(device()));
  EXPECT_EQ(later.const_data_ptr(), place);  // written behind the copy, or it is a race
  EXPECT_TRUE(same_bits(links.receive(kParcel), expected));
  links.finish();
}

TEST_F(PeerLinksTest, WhatNobodyExpectsYetIsKeptForAsLongAsItTakes) {
  PeerLinks links(first_devices(2));
  at::Tensor sent = random_on(0, {kMany}, 1);
  const at::Tensor expected = sent.cpu();
  links.send(kParcel, 0, std::move(sent));
  sent.reset();
  const auto live = live_on(0);
  for (int action = 0; action < 3; ++action) {
    links.begin_action(0);
    EXPECT_EQ(live_on(0), live);
  }
  expect(links, kParcel, {kMany});
  EXPECT_TRUE(same_bits(links.receive(kParcel), expected));
  links.finish();
  EXPECT_EQ(live_on(0), 0U);
}

TEST_F(PeerLinksTest, ASenderThatOverwritesTooEarlyIsARace) {
  expect_races();
  PeerLinks links(first_devices(2));
  at::Tensor sent = random_on(0, {kMany}, 1);
  expect(links, kParcel, {kMany});
  links.send(kParcel, 0, sent);
  EXPECT_EQ(sim().num_races(), 0);
  sent.zero_();
  EXPECT_GT(sim().num_races(), 0);
  links.receive(kParcel);
  links.finish();
}

TEST_F(PeerLinksTest, OnlyTheStreamThatReceivesMayRead) {
  expect_races();
  PeerLinks links(first_devices(2));
  const at::Tensor sent = random_on(0, {kMany}, 1);
  expect(links, kParcel, {kMany});
  links.send(kParcel, 0, sent);
  at::Tensor received;
  {
    const c10::StreamGuard on_another(device_at(1).new_stream("another"));
    received = links.receive(kParcel);
    received.sum();
    EXPECT_EQ(sim().num_races(), 0);
  }
  received.sum();
  EXPECT_GT(sim().num_races(), 0);
  links.finish();
}

TEST_F(PeerLinksTest, ThePlaceIsWrittenBehindItsLastUse) {
  PeerLinks links(first_devices(2));
  const at::Tensor sent = random_on(0, {kMany}, 1);
  at::Tensor before = random_on(1, {kMany}, 2);
  const void* place = before.const_data_ptr();
  keep_busy(20, 128, device_at(1).torch_device());
  before.mul_(2);
  before.reset();
  expect(links, kParcel, {kMany});
  links.send(kParcel, 0, sent);
  const at::Tensor received = links.receive(kParcel);
  EXPECT_EQ(received.const_data_ptr(), place);
  EXPECT_TRUE(same_bits(received, sent));
  links.finish();
}

TEST_F(PeerLinksTest, ACopyTakesTheLinksTime) {
  PeerLinks links(first_devices(2));
  const at::Tensor sent = random_on(0, {kMany}, 1);
  expect(links, kParcel, {kMany});
  synchronize();
  const double begin = microseconds_at(1);
  links.send(kParcel, 0, sent);
  links.receive(kParcel);
  const double copy = copy_microseconds(4.0 * kMany);
  EXPECT_GE(microseconds_at(1) - begin, copy);
  EXPECT_LE(microseconds_at(1) - begin, 1.05 * copy + 5);
  links.finish();
}

TEST_F(PeerLinksTest, ACopyRunsUnderTheComputeOfBothSides) {
  PeerLinks links(first_devices(2));
  const at::Tensor sent = random_on(0, {kMany}, 1);
  synchronize();
  const double begin = microseconds_at(1);
  keep_busy(200, 128, device_at(1).torch_device());
  const double compute = microseconds_at(1) - begin;
  ASSERT_GT(compute, copy_microseconds(4.0 * kMany));
  synchronize();
  expect(links, kParcel, {kMany});
  synchronize();
  const std::vector<double> begins = {microseconds_at(0), microseconds_at(1)};
  links.send(kParcel, 0, sent);
  links.begin_action(0);
  for (const size_t index : {0, 1}) {
    keep_busy(200, 128, device_at(index).torch_device());
  }
  links.begin_action(0);
  links.receive(kParcel);
  for (const size_t index : {0, 1}) {
    EXPECT_LE(microseconds_at(index) - begins[index], 1.05 * compute) << index;
  }
  links.finish();
}

TEST_F(PeerLinksTest, ExpectingTwiceTakesOnePlace) {
  PeerLinks links(first_devices(2));
  const at::Tensor sent = random_on(0, {kMany}, 1);
  expect(links, kParcel, {kMany});
  const auto live = live_on(1);
  expect(links, kParcel, {kMany});
  links.send(kParcel, 0, sent);
  expect(links, kParcel, {kMany});  // it is under way already
  EXPECT_EQ(live_on(1), live);
  EXPECT_TRUE(same_bits(links.receive(kParcel), sent));
  links.finish();
  EXPECT_EQ(live_on(1), 0U);
}

TEST_F(PeerLinksTest, ReceivingWhatWasNotSentIsRefused) {
  PeerLinks links(first_devices(2));
  EXPECT_THAT(message_of([&] { links.receive(kParcel); }),
              HasSubstr("a tensor is received before it was sent"));
  expect(links, kParcel, {3});
  EXPECT_THAT(message_of([&] { links.receive(kParcel); }),
              HasSubstr("a tensor is received before it was sent"));
  links.send(kParcel, 0, random_on(0, {3}, 1));
  links.receive(kParcel);
  EXPECT_THAT(message_of([&] { links.receive(kParcel); }),
              HasSubstr("a tensor is received before it was sent"));
  links.finish();
}

TEST_F(PeerLinksTest, WhatIsLeftBehindGoesWithTheLinks) {
  const auto live = sim().live_bytes();
  std::vector<at::Tensor> written;
  {
    PeerLinks links(first_devices(2));
    links.send(kParcel, 0, random_on(0, {kMany}, 1));
    expect(links, {Transfer::Kind::kGradient, 0, 0, 0}, {kMany});
    expect(links, {Transfer::Kind::kActivation, 1, 1, 0}, {kMany});
    links.send({Transfer::Kind::kActivation, 1, 1, 0}, 0, random_on(0, {kMany}, 2));
  }
  EXPECT_EQ(sim().live_bytes(), live);
  // Others take the memory: behind the copy, or it is a race.
  const auto options = at::TensorOptions().dtype(at::kFloat);
  for (const size_t index : {0, 1}) {
    for (int i = 0; i < 3; ++i) {
      written.push_back(at::ones({kMany}, options.device(device_at(index).torch_device())));
    }
  }
}

}  // namespace
}  // namespace swapline::trainer
