// std::mutex with Clang's thread-safety annotations. Debian's prebuilt absl::Mutex is invisible to
// ThreadSanitizer; this one is not.
//
//   mutable Mutex mutex_;
//   int value_ ABSL_GUARDED_BY(mutex_) = 0;
//   ...
//   MutexLock lock(mutex_);
//   while (value_ == 0) changed_.Wait(lock);
#ifndef TESSERA_COMMON_MUTEX_H_
#define TESSERA_COMMON_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

namespace tessera {

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() ABSL_UNLOCK_FUNCTION() = default;
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  friend class CondVar;
  std::unique_lock<std::mutex> lock_;
};

// Waits may wake without cause: call them in a loop over the condition.
class CondVar {
 public:
  void Wait(MutexLock& lock) { changed_.wait(lock.lock_); }
  // False when `timeout` has passed.
  bool WaitFor(MutexLock& lock, absl::Duration timeout) {
    return changed_.wait_for(lock.lock_, absl::ToChronoNanoseconds(timeout)) ==
           std::cv_status::no_timeout;
  }
  void NotifyAll() { changed_.notify_all(); }

 private:
  std::condition_variable changed_;
};

}  // namespace tessera

#endif  // TESSERA_COMMON_MUTEX_H_
