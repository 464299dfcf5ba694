// The memory files of one host's part of a job.
//
//   TESSERA_ASSIGN_OR_RETURN(HostFiles files, CreateHostFiles(form_host));
#ifndef TESSERA_WORKER_HOST_FILES_H_
#define TESSERA_WORKER_HOST_FILES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "tessera/v1/membership_service.pb.h"
#include "worker/memory_file.h"

namespace tessera {

struct HostFiles {
  std::vector<MemoryFile> shared;  // unsharded, gradient, control: HandoffFile's order
  std::vector<MemoryFile> ranks;   // one for each assignment, in its order
};

// Bytes that the files of `form` take, each rounded up to 4,096.
int64_t HostFilesBytes(const v1::FormHost& form);

// Makes them all or none, after a look at what memory the host has left (worker/host_memory.h).
// Their lengths are the forecast's. RESOURCE_EXHAUSTED: the host has too little memory; the message
// has both figures.
absl::StatusOr<HostFiles> CreateHostFiles(const v1::FormHost& form);

// For a next generation: a new control file, all zero, in the place of the old one. INTERNAL:
// `form` is of other lengths than `files`.
absl::Status RenewControlFile(const v1::FormHost& form, HostFiles& files);

}  // namespace tessera

#endif  // TESSERA_WORKER_HOST_FILES_H_
