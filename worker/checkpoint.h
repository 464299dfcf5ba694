// What a job writes into its directory (checkpoint.dir): the directory itself, and the export. The
// checkpoints are in checkpoint_saver.h.
#ifndef TESSERA_WORKER_CHECKPOINT_H_
#define TESSERA_WORKER_CHECKPOINT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/name_rules.h"
#include "common/unique_fd.h"
#include "worker/session.h"

namespace tessera {

// Makes checkpoint.dir for the job's checkpoints and export, so that a directory which cannot be
// written is known before the first step and not after the last. Rank 0 alone does anything, and
// only if the job is to write. INVALID_ARGUMENT (field checkpoint.dir): it cannot be made or
// written. FAILED_PRECONDITION: another job is to write there, and the two would overwrite each
// other; the directory is this job's while the descriptor that is given (none where nothing was
// done) is open, and at the latest until the process ends. A file system without locks on
// directories goes unguarded.
absl::StatusOr<UniqueFd> PrepareDirectory(const v1::JobSpec& job, int rank);

// Writes the whole model to DIR/export/model.safetensors if the job wants an export. All ranks call
// it, outside a step; one unit is whole at a time, rank 0 writes. Tied parameters are written once,
// under the name that holds the storage. The file appears whole or not at all: it is written under
// another name, synced and renamed. Returns the path on rank 0, "" elsewhere and where nothing was
// written. UNAVAILABLE and the rest as any Session call; INTERNAL: writing failed, e.g. the disk is
// full; names the file.
absl::StatusOr<std::string> WriteExport(Session& session);

// The first bytes of a safetensors file of `plan`: the header's length and the header, padded to a
// multiple of 8. Data follows in the units' order. A parameter whose name `rules` makes "" is left
// out. INVALID_ARGUMENT (checkpoint.export_names): two parameters get one name. Public for tests.
absl::StatusOr<std::string> ExportStart(const v1::Plan& plan, const NameRules& rules);

}  // namespace tessera

#endif  // TESSERA_WORKER_CHECKPOINT_H_
