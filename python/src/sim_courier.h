// Messages under way. A send is done for the sender when its bytes have left the device; that the
// receiver takes them may be much later, and is waited for here, on a thread of its own.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace swapline::python {

class Courier {
 public:
  Courier() = default;
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;
  ~Courier();  // waits until every message was taken

  // Throws what became of an earlier message that could not be delivered.
  void check();
  void post(c10::intrusive_ptr<c10d::Work> message);
  void wait_for_all();
  void abort();  // those under way fail

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<c10::intrusive_ptr<c10d::Work>> messages_;  // the first is being waited for
  std::exception_ptr error_;
  bool is_closing_ = false;
  std::thread thread_;  // started by the first message
};

}  // namespace swapline::python
