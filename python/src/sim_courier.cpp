#include "python/src/sim_courier.h"

#include <utility>

namespace swapline::python {

Courier::~Courier() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Courier::check() {
  const std::lock_guard lock(mutex_);
  if (error_ != nullptr) {
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

void Courier::post(c10::intrusive_ptr<c10d::Work> message) {
  const std::lock_guard lock(mutex_);
  messages_.push_back(std::move(message));
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { run(); });
  }
  changed_.notify_all();
}

void Courier::wait_for_all() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return messages_.empty(); });
}

void Courier::abort() {
  const std::lock_guard lock(mutex_);
  for (const auto& message : messages_) {
    message->abort();
  }
}

void Courier::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return is_closing_ || !messages_.empty(); });
    if (messages_.empty()) {
      return;
    }
    const auto message = messages_.front();
    lock.unlock();
    std::exception_ptr error;
    try {
      message->wait();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error != nullptr && error_ == nullptr) {
      error_ = error;
    }
    messages_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace swapline::python
