// Work on all threads of XLA's pool, for the kernels.

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "xla/ffi/api/ffi.h"

// Not nameless: all kernels share the board.
namespace specdec {

// How long a thread that has done its part waits for the next: to wake one takes longer
// than most products.
constexpr std::chrono::microseconds kPatience(300);
// What is worth a thread's attention, in multiplications.
constexpr int64_t kPart = 1 << 15;

class Job {
 public:
  Job(int64_t count, std::function<void(int64_t)> work)
      : count_(count), work_(std::move(work)) {}

  void Run() {
    for (int64_t i; (i = next_.fetch_add(1)) < count_; done_.fetch_add(1)) work_(i);
  }

  bool done() const { return done_.load() == count_; }

  int64_t number = 0;  // On the board.

 private:
  const int64_t count_;
  const std::function<void(int64_t)> work_;
  std::atomic<int64_t> next_{0}, done_{0};
};

// Where threads that have done their part find the next.
class Board {
 public:
  static Board& The() {
    static Board& board = *new Board;  // Threads outlive what is destroyed at the end.
    return board;
  }

  // Shows the job to the threads that wait; returns how many do.
  int64_t Post(std::shared_ptr<Job> job) {
    std::lock_guard<std::mutex> lock(mutex_);
    job->number = number_ + 1;
    last_ = std::move(job);
    ++number_;
    return waiting_;
  }

  // Does its part of the job, and of those that are posted soon after.
  void Help(std::shared_ptr<Job> job) {
    for (; job; job = After(job->number)) job->Run();
  }

 private:
  std::shared_ptr<Job> After(int64_t number) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    ++waiting_;
    while (number_ == number && std::chrono::steady_clock::now() < end)
      std::this_thread::yield();
    --waiting_;
    std::lock_guard<std::mutex> lock(mutex_);
    return number_ == number ? nullptr : last_;
  }

  std::mutex mutex_;
  std::shared_ptr<Job> last_;
  std::atomic<int64_t> number_{0}, waiting_{0};
};

// Calls work(0) .. work(count - 1). This thread may do all of it: the pool's may be
// busy with calls that wait likewise, and to wait for one that never starts would be a
// deadlock. One that starts late finds nothing left, in a job that it keeps alive.
inline void Parallel(xla::ffi::ThreadPool& pool, int64_t count,
                     std::function<void(int64_t)> work) {
  if (count == 1) return work(0);
  auto job = std::make_shared<Job>(count, std::move(work));
  const int64_t helpers = std::min<int64_t>(pool.num_threads(), count) - 1;
  for (int64_t i = Board::The().Post(job); i < helpers; ++i)
    pool.Schedule([job] { Board::The().Help(job); });
  job->Run();
  while (!job->done()) std::this_thread::yield();
}

// Returns how many parts so many multiplications are worth.
inline int64_t Parts(xla::ffi::ThreadPool& pool, int64_t multiplications) {
  const int64_t most = 4 * std::max<int64_t>(pool.num_threads(), 1);
  return std::clamp<int64_t>(multiplications / kPart, 1, most);
}

}  // namespace specdec
