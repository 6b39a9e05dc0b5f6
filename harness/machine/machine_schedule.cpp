// When it runs.
#include "harness/machine/machine.h"

#include <chrono>

namespace swapline::harness {
namespace {

double now_ms() {
  using std::chrono::duration;
  using std::chrono::steady_clock;
  return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace

bool Machine::set_mode(const std::string& text) {
  constexpr std::string_view kRandom = "random:";
  for (const auto& stream : streams_) {
    finish(*stream);
  }
  if (text == "eager") {
    mode_ = Mode::kEager;
  } else if (text == "late") {
    mode_ = Mode::kLate;
  } else if (text == "late-copies") {
    mode_ = Mode::kLateCopies;
  } else if (text == "late-compute") {
    mode_ = Mode::kLateCompute;
  } else if (text.rfind(kRandom, 0) == 0) {
    mode_ = Mode::kRandom;
    random_.seed(static_cast<unsigned>(std::strtoul(text.c_str() + kRandom.size(), nullptr, 10)));
  } else {
    return false;
  }
  return true;
}

bool Machine::may_run(const Stream& stream) const {
  if (stream.queue.empty()) {
    return false;
  }
  const Work& head = stream.queue.front();
  if (head.waits_for && !head.waits_for->is_done) {
    return false;
  }
  switch (mode_) {
    case Mode::kLate:
      return false;
    case Mode::kLateCopies:
      return head.kind != Kind::kHostCopy;
    case Mode::kLateCompute:
      return head.kind != Kind::kKernel;
    case Mode::kEager:
    case Mode::kRandom:
      break;
  }
  return true;
}

void Machine::progress() {
  if (mode_ == Mode::kLate) {
    return;
  }
  if (mode_ == Mode::kRandom) {
    run_a_burst();
    return;
  }
  for (bool again = true; again;) {
    again = false;
    for (const auto& stream : streams_) {
      while (may_run(*stream)) {
        run_head(*stream);
        again = true;
      }
    }
  }
}

// Mostly nothing, now and then some steps.
void Machine::run_a_burst() {
  constexpr unsigned kRarely = 16;
  constexpr unsigned kMostSteps = 32;
  if (random_() % kRarely != 0) {
    return;
  }
  for (unsigned step = random_() % kMostSteps; step > 0; --step) {
    std::vector<Stream*> ready;
    for (const auto& stream : streams_) {
      if (may_run(*stream)) {
        ready.push_back(stream.get());
      }
    }
    if (ready.empty()) {
      return;
    }
    run_head(*ready[random_() % ready.size()]);
  }
}

void Machine::drain(Stream& stream, uint64_t position) {
  while (stream.num_done < position) {
    if (const auto record = stream.queue.front().waits_for) {
      drain(*record->stream, record->position);
    }
    run_head(stream);
  }
}

void Machine::run_head(Stream& stream) {
  Work work = std::move(stream.queue.front());
  stream.queue.pop_front();
  if (work.run) {
    work.run();
  }
  ++stream.num_done;
  if (work.records) {
    work.records->is_done = true;
    work.records->ms = now_ms();
  }
}

void Machine::finish(Stream& stream) {
  drain(stream, stream.num_enqueued);
}

void Machine::host_learns(Stream& stream) {
  host_.join(stream.clock);
}

}  // namespace swapline::harness
