// A StateStore in one SQLite file, DIR/coordinator.sqlite: WAL, synchronous=FULL for durable
// changes and NORMAL for the others.
//
//   TESSERA_ASSIGN_OR_RETURN(auto store, OpenSqliteStateStore("/var/lib/tessera"));
//
// The file belongs to one process: it is locked until the store is destroyed or the process has
// ended, however it ends. It says by its application id that it is ours and by its user version
// which schema it has; an older one is brought up to date when it is opened, step by step, and a
// newer one is left alone.
//
// Thread-safe.
#ifndef TESSERA_COORDINATOR_SQLITE_STATE_STORE_H_
#define TESSERA_COORDINATOR_SQLITE_STATE_STORE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/state_store.h"

namespace tessera {

inline constexpr int kStateSchemaVersion = 1;

// Makes the folder and the file where there is none. Every error names the file and says what to
// do. FAILED_PRECONDITION: another process has it; its schema is newer; it is some other program's.
// DATA_LOSS: it is damaged. RESOURCE_EXHAUSTED: the disk is full. UNAVAILABLE: it cannot be read
// and written.
absl::StatusOr<std::unique_ptr<StateStore>> OpenSqliteStateStore(const std::string& state_dir);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_SQLITE_STATE_STORE_H_
