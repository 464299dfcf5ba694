// What a simulated member needs of the coordinator's larger messages, read off the wire: the rest
// (a job's spec, the units themselves) is skipped and never built, so that thousands of members fit
// into one process.
//
//   google::protobuf::io::ArrayInputStream bytes(data, size);
//   TESSERA_ASSIGN_OR_RETURN(const FormedHost formed, ReadFormHost(&bytes));
//
// Thread-safety: pure functions of what they read.
#ifndef TESSERA_CLIENT_ATTEND_WIRE_H_
#define TESSERA_CLIENT_ATTEND_WIRE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "google/protobuf/io/zero_copy_stream.h"

namespace tessera {

// Of a serialized AttendResponse with form_host.
struct FormedHost {
  int64_t generation = 0;
  std::vector<int> ranks;
};
// INVALID_ARGUMENT: it is no AttendResponse, or has something else than form_host.
absl::StatusOr<FormedHost> ReadFormHost(google::protobuf::io::ZeroCopyInputStream* bytes);

// Of a serialized ListUnitsResponse.
struct UnitsPage {
  int units = 0;
  int layouts = 0;
  std::string next_page_token;
};
// INVALID_ARGUMENT: it is none.
absl::StatusOr<UnitsPage> ReadUnitsPage(google::protobuf::io::ZeroCopyInputStream* bytes);

}  // namespace tessera

#endif  // TESSERA_CLIENT_ATTEND_WIRE_H_
