// Times of protobuf messages from and to Abseil's.
#ifndef TESSERA_COORDINATOR_PROTO_TIME_H_
#define TESSERA_COORDINATOR_PROTO_TIME_H_

#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"

namespace tessera {

inline absl::Duration ToDuration(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

inline void SetDuration(absl::Duration duration, google::protobuf::Duration* out) {
  const timespec parts = absl::ToTimespec(duration);
  out->set_seconds(parts.tv_sec);
  out->set_nanos(static_cast<int32_t>(parts.tv_nsec));
}

inline void SetTimestamp(absl::Time time, google::protobuf::Timestamp* out) {
  const timespec parts = absl::ToTimespec(time);
  out->set_seconds(parts.tv_sec);
  out->set_nanos(static_cast<int32_t>(parts.tv_nsec));
}

inline absl::Time FromTimestamp(const google::protobuf::Timestamp& timestamp) {
  return absl::FromUnixSeconds(timestamp.seconds()) + absl::Nanoseconds(timestamp.nanos());
}

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_PROTO_TIME_H_
