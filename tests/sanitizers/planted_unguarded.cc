// A counter that one mutex guards. As it stands it compiles under --config=clang; with
// TESSERA_PLANT_UNGUARDED its reader forgets the mutex, and must not compile.
#include <cstdint>

#include "common/mutex.h"

namespace tessera {

class Counter {
 public:
  void Add() {
    MutexLock lock(mutex_);
    AddLocked();
  }

  int64_t value() const {
#ifndef TESSERA_PLANT_UNGUARDED
    MutexLock lock(mutex_);
#endif
    return value_;
  }

 private:
  void AddLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { ++value_; }

  mutable Mutex mutex_;
  int64_t value_ ABSL_GUARDED_BY(mutex_) = 0;
};

int64_t CountTo(int64_t end) {
  Counter counter;
  while (counter.value() < end) counter.Add();
  return counter.value();
}

}  // namespace tessera
