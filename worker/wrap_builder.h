// Where wrap.h keeps what a rank has built: its scope, its line to the coordinator and its slices
// of the sealed units.
//
//   TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<WrapBuilder> builder, WrapBuilder::Connect({}));
//
// A builder that is dropped before Session::Join took it leaves the job with the last error, or as
// one that did not finish. Thread-safe.
#ifndef TESSERA_WORKER_WRAP_BUILDER_H_
#define TESSERA_WORKER_WRAP_BUILDER_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/dtype.h"
#include "common/mutex.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/membership_service.pb.h"
#include "worker/kept_shards.h"

namespace tessera {

struct DraftRank;

class WrapBuilder {
 public:
  struct Options {
    // As Session::Options.on_end, from now on.
    std::function<void(const absl::Status&)> on_end = nullptr;
  };
  // Takes the rank that the host's agent hands out through TESSERA_AGENT_FD. FAILED_PRECONDITION:
  // no agent started this process, or the job's model is not built by its ranks (model.built).
  // DEADLINE_EXCEEDED, UNAVAILABLE: as Session::Join.
  static absl::StatusOr<std::shared_ptr<WrapBuilder>> Connect(Options options);

  // What a builder needs of the world; Connect makes the real one.
  struct World {
    int rank = 0;
    int world_size = 1;
    v1::JobSpec spec = {};  // resolved
    std::function<absl::StatusOr<v1::AnnounceModuleResponse>(const v1::ModuleAnnouncement&)>
        announce = nullptr;
    std::function<absl::Status(int number, const std::string& dtype)> change_dtype = nullptr;
  };
  explicit WrapBuilder(World world);
  ~WrapBuilder();
  WrapBuilder(const WrapBuilder&) = delete;
  WrapBuilder& operator=(const WrapBuilder&) = delete;

  int rank() const { return world_.rank; }
  int world_size() const { return world_.world_size; }
  // With every default filled in.
  const v1::JobSpec& job() const { return world_.spec; }

  // The model is of another dtype from now on (torch's model.half()): the sealed units' dtypes are
  // resolved again and their values rounded; what is wrapped later says its own. Not while another
  // thread wraps. Errors: as MembershipService.ChangeModelDType.
  absl::Status ChangeDType(DType dtype);
  // The root is wrapped.
  bool complete() const;
  // Remembers an error, for when the builder is dropped; forgets it after a success. Returns
  // `status`. For a program that fails for a reason of its own.
  absl::Status Note(absl::Status status);
  // Memory of the slices kept.
  int64_t kept_bytes() const { return kept_.bytes(); }

 private:
  // FAILED_PRECONDITION (PLAN_SEALED): the root is wrapped.
  absl::Status CheckOpen() const;

  friend class EnableWrap;
  friend class Wrapping;
  friend class BuiltRank;
  struct Scope {
    v1::WrapConfig config;
    std::optional<v1::WrapSpec> policy;
  };

  const World world_;
  KeptShards kept_;
  std::unique_ptr<DraftRank> line_;  // null in tests, and once the session has it
  mutable Mutex mutex_;
  std::shared_ptr<const Scope> scope_ ABSL_GUARDED_BY(mutex_);
  int dtype_changes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool complete_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_WRAP_BUILDER_H_
