// The operations of ShmCollectives; for its own files.
#ifndef TESSERA_WORKER_COLLECTIVES_SHM_OPERATION_H_
#define TESSERA_WORKER_COLLECTIVES_SHM_OPERATION_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "worker/collectives/shm_collectives.h"

namespace tessera {

// Something that is done in parts, as the other ranks allow.
class ShmCollectives::Operation : public Event::State {
 public:
  Operation(ShmCollectives* owner, uint64_t tag) : owner_(owner), tag_(tag) {}

  // Does what can be done now; true when there is nothing left.
  virtual bool Advance() = 0;
  virtual std::string What() const = 0;
  // World ranks that have not arrived.
  virtual std::vector<int> Missing() const = 0;
  // What waits for it, of which unit; OPERATION_UNSPECIFIED: see What.
  virtual std::pair<int, v1::Operation> Place() const { return owner_->PlaceOf(tag_); }

  absl::StatusOr<bool> Poll() override {
    owner_->AdvancePending();
    return done;
  }
  absl::Status Wait() override { return owner_->WaitFor(*this); }

  uint64_t tag() const { return tag_; }
  bool done = false;

 protected:
  ShmCollectives* const owner_;

 private:
  const uint64_t tag_;  // 0: nothing that the ranks have to agree on
};

}  // namespace tessera

#endif  // TESSERA_WORKER_COLLECTIVES_SHM_OPERATION_H_
