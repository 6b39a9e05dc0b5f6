// How many bytes of inputs may wait on the device for their copies out without raising the peak of
// memory: learned from two strict passes. Inside layer_input/ only.
//
// Strict has its peak in the first backward, where a layer's activations and their gradients meet.
// The forward before it stays lower; what it stays lower by may be filled with inputs on their way
// out, if they are gone by then. The first pass gives forward's heights, the second the height of
// the first backward with gradients and optimizer states already there. Both are told apart from
// what the device holds when a pass begins.
//
// Passes differ in what the device holds then: gradients, what other passes in flight keep. So
// nothing is allowed above the highest point that a sampled backward has reached, nor above the
// least height over its beginning that one had; and a pass that begins with more on the device than
// all sampled before is sampled too.
//
// Allocated bytes are not all: blocks of different sizes do not fill each other's gaps, and the
// allocator may take another segment from the device. That is seen when it happens; half as much
// is allowed then, and the segment goes back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

namespace swapline {

// Not thread-safe. Without allocator statistics of the device it allows nothing, ever.
class LagProfile {
 public:
  // Allows nothing.
  LagProfile() = default;
  explicit LagProfile(c10::Device device);

  // A layer is about to run forward. `begins`: the first one after a backward, or at all. Larger
  // inputs than the learned ones make it learn again.
  void enter(bool begins, int64_t index, c10::ArrayRef<int64_t> sizes);
  // The first backward is about to run its layer again.
  void turn();
  // It has, and goes backward now.
  void recomputed();
  // Whether that backward is to be sampled: sample() after each of its nodes, then sampled().
  bool wants_samples() const { return is_sampling_; }
  void sample();
  void sampled();
  // Forwards and backwards overlap, or something else that no pass has shown: nothing is allowed,
  // and nothing learned, until the next pass begins.
  void suspend();
  // What was learned does not hold here: nothing is allowed from now on.
  void withdraw() { phase_ = Phase::kOff; }
  // So many bytes, which no pass has shown, stay until the forward's end.
  void note_hinted(size_t bytes) { hinted_ += static_cast<int64_t>(bytes); }

  // Strict ones only while it learns: what happens to be done is not let go early then.
  bool is_learning() const { return phase_ == Phase::kForward || phase_ == Phase::kBackward; }
  // Bytes, beyond what strict holds, while layer `index` of a pass runs forward.
  size_t forward_allowance(int64_t index) const;
  // The same while the first backward runs its layer again.
  size_t turn_allowance() const;
  // So much of an allowance is used now.
  void note_used(size_t bytes) { used_ = std::max(used_, bytes); }
  // What an input takes of an allowance.
  static size_t cost_of(size_t bytes);

 private:
  enum class Phase { kOff, kForward, kBackward, kLearned };
  struct Heights {
    int64_t now = 0;
    int64_t peak = 0;  // so far
    int64_t reserved = 0;
  };
  Heights heights() const;
  bool are_covered(c10::ArrayRef<int64_t> sizes) const;
  void begin();
  void forget_forward();
  void note_forward(int64_t index);
  size_t allowance_over(int64_t height) const;
  void check_lag();

  c10::DeviceAllocator* allocator_ = nullptr;
  c10::Device device_ = c10::Device(c10::kCPU);
  Phase phase_ = Phase::kOff;
  bool is_recording_ = false;     // this pass is seen from its beginning
  bool is_suspended_ = false;     // until the next one
  bool is_sampling_ = false;      // its first backward
  bool is_full_size_ = false;     // one of its inputs has the learned sizes
  bool has_full_sample_ = false;  // of such a pass
  c10::SmallVector<int64_t, 5> sizes_;
  int64_t last_index_ = -1;
  Heights at_begin_;
  // Beyond at_begin_.now:
  std::vector<int64_t> forward_;  // most until the end of each layer's forward
  int64_t recompute_ = 0;         // most until the first recompute's end
  int64_t backward_ = 0;          // most in a first backward; of those sampled, the least
  int64_t sample_ = 0;            // the same in the one that is sampled now
  int64_t hinted_ = 0;            // what hints have brought in since

  int64_t most_at_begin_ = 0;  // on the device when a sampled pass began
  int64_t ceiling_ = 0;        // the highest point of a sampled backward

  size_t most_ = std::numeric_limits<size_t>::max();  // what no allowance passes
  size_t used_ = 0;                                   // most of an allowance in this pass
  int64_t strict_reserved_ = 0;                       // taken from the device by all but the lag
  int64_t checked_reserved_ = 0;
  bool gives_back_ = false;
};

}  // namespace swapline
