#include "common/limits.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "tessera/v1/model.pb.h"

namespace tessera {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr char kLimitUrl[] = "tessera.limit";
constexpr absl::Duration kIdle = absl::Seconds(1);

std::string PathOf(const std::string& path, const FieldDescriptor& field, int index) {
  std::string name = path.empty() ? field.name() : absl::StrCat(path, ".", field.name());
  return index < 0 ? name : absl::StrCat(name, "[", index, "]");
}

// One walk over a message.
class Walk {
 public:
  explicit Walk(const MessageLimits& limits) : limits_(limits) {}

  absl::Status Visit(const Message& message, const std::string& path) {
    if (message.GetDescriptor() == v1::Module::descriptor() && ++modules_ > limits_.max_modules) {
      return LimitExceeded("max_modules", limits_.max_modules,
                           absl::StrCat(path, " is module ", modules_));
    }
    const auto* reflection = message.GetReflection();
    std::vector<const FieldDescriptor*> fields;
    reflection->ListFields(message, &fields);
    for (const FieldDescriptor* field : fields) {
      if (field->cpp_type() != FieldDescriptor::CPPTYPE_STRING &&
          field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
        continue;
      }
      if (!field->is_repeated()) {
        TESSERA_RETURN_IF_ERROR(VisitField(message, *field, -1, path));
        continue;
      }
      for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
        TESSERA_RETURN_IF_ERROR(VisitField(message, *field, i, path));
      }
    }
    return absl::OkStatus();
  }

 private:
  // `index` -1: the field is not repeated.
  absl::Status VisitField(const Message& message, const FieldDescriptor& field, int index,
                          const std::string& path) {
    const auto* reflection = message.GetReflection();
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      return Visit(index < 0 ? reflection->GetMessage(message, &field)
                             : reflection->GetRepeatedMessage(message, &field, index),
                   PathOf(path, field, index));
    }
    std::string scratch;
    const std::string& text =
        index < 0 ? reflection->GetStringReference(message, &field, &scratch)
                  : reflection->GetRepeatedStringReference(message, &field, index, &scratch);
    const auto bytes = static_cast<int64_t>(text.size());
    if (bytes <= limits_.max_string_bytes) return absl::OkStatus();
    return LimitExceeded("max_string_bytes", limits_.max_string_bytes,
                         absl::StrCat(PathOf(path, field, index), " has ", bytes, " bytes"));
  }

  const MessageLimits limits_;
  int64_t modules_ = 0;
};

}  // namespace

absl::Status LimitExceeded(absl::string_view name, int64_t limit, absl::string_view what) {
  absl::Status status = WithReason(
      absl::ResourceExhaustedError(absl::StrCat(what, "; the limit ", name, " is ", limit)),
      "LIMIT_EXCEEDED");
  status.SetPayload(kLimitUrl, absl::Cord(absl::StrCat(name, "=", limit)));
  return status;
}

std::string Limit(const absl::Status& status) {
  const auto payload = status.GetPayload(kLimitUrl);
  return payload.has_value() ? std::string(*payload) : "";
}

absl::Status CheckMessage(const Message& message, const MessageLimits& limits) {
  // What is small enough as a whole is in its parts; reports of large jobs are so many that to look
  // at each field would cost more than to take them. (A module takes two bytes or more.)
  const auto bytes = static_cast<int64_t>(message.ByteSizeLong());
  if (bytes <= limits.max_string_bytes && bytes <= limits.max_modules) return absl::OkStatus();
  return Walk(limits).Visit(message, "");
}

absl::Status CallerLimits::Begin(const std::string& caller, bool stream) {
  const absl::Time now = options_.clock->Now();
  MutexLock lock(mutex_);
  if (counts_.size() >= forget_at_) ForgetIdleLocked(now);
  const auto most = static_cast<double>(options_.max_requests_per_second);
  const auto [entry, added] = counts_.try_emplace(caller);
  Counts& counts = entry->second;
  counts.tokens =
      added
          ? most
          : std::min(most, counts.tokens + most * absl::ToDoubleSeconds(std::max(
                                                      now - counts.filled, absl::ZeroDuration())));
  counts.filled = now;
  if (counts.tokens < 1) {
    return LimitExceeded("max_requests_per_second", options_.max_requests_per_second,
                         absl::StrCat(caller, " calls too often"));
  }
  if (stream && counts.streams >= options_.max_streams) {
    return LimitExceeded("max_streams", options_.max_streams,
                         absl::StrCat(caller, " has ", counts.streams, " streams open"));
  }
  if (!stream && counts.in_flight >= options_.max_requests_in_flight) {
    return LimitExceeded("max_requests_in_flight", options_.max_requests_in_flight,
                         absl::StrCat(caller, " waits for ", counts.in_flight, " answers"));
  }
  counts.tokens -= 1;
  ++(stream ? counts.streams : counts.in_flight);
  return absl::OkStatus();
}

void CallerLimits::End(const std::string& caller, bool stream) {
  MutexLock lock(mutex_);
  const auto found = counts_.find(caller);
  if (found == counts_.end()) return;
  int64_t& count = stream ? found->second.streams : found->second.in_flight;
  count = std::max<int64_t>(0, count - 1);
}

int64_t CallerLimits::callers() const {
  MutexLock lock(mutex_);
  return static_cast<int64_t>(counts_.size());
}

// Whoever was quiet for a second has its full right again: nothing about it needs to be known.
void CallerLimits::ForgetIdleLocked(absl::Time now) {
  for (auto entry = counts_.begin(); entry != counts_.end();) {
    const Counts& counts = entry->second;
    const bool idle = counts.in_flight == 0 && counts.streams == 0 && now - counts.filled >= kIdle;
    entry = idle ? counts_.erase(entry) : std::next(entry);
  }
  forget_at_ = std::max<size_t>(1000, 2 * counts_.size());
}

}  // namespace tessera
