#include "client/attend_wire.h"

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "tessera/v1/membership_service.pb.h"

namespace tessera {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the coordinator sent something that is no ", what,
                   "; this program and the coordinator are of different builds"));
}

bool IsMessage(uint32_t tag, int field) {
  return WireFormatLite::GetTagFieldNumber(tag) == field &&
         WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
}

bool ReadAssignment(CodedInputStream& in, FormedHost* host) {
  uint32_t length = 0;
  std::string text;
  v1::Assignment assignment;
  if (!in.ReadVarint32(&length) || !in.ReadString(&text, static_cast<int>(length)) ||
      !assignment.ParseFromString(text)) {
    return false;
  }
  host->ranks.push_back(assignment.rank());
  return true;
}

// The message's own bytes, up to the limit that is set.
bool ReadFormHostFields(CodedInputStream& in, FormedHost* host) {
  while (const uint32_t tag = in.ReadTag()) {
    if (IsMessage(tag, v1::FormHost::kAssignmentsFieldNumber)) {
      if (!ReadAssignment(in, host)) return false;
    } else if (WireFormatLite::GetTagFieldNumber(tag) == v1::FormHost::kGenerationFieldNumber) {
      uint64_t generation = 0;
      if (!in.ReadVarint64(&generation)) return false;
      host->generation = static_cast<int64_t>(generation);
    } else if (!WireFormatLite::SkipField(&in, tag)) {
      return false;
    }
  }
  return in.ConsumedEntireMessage();
}

}  // namespace

absl::StatusOr<FormedHost> ReadFormHost(google::protobuf::io::ZeroCopyInputStream* bytes) {
  CodedInputStream in(bytes);
  FormedHost host;
  uint32_t length = 0;
  if (!IsMessage(in.ReadTag(), v1::AttendResponse::kFormHostFieldNumber) ||
      !in.ReadVarint32(&length)) {
    return Malformed("FormHost");
  }
  const CodedInputStream::Limit limit = in.PushLimit(static_cast<int>(length));
  if (!ReadFormHostFields(in, &host)) return Malformed("FormHost");
  in.PopLimit(limit);
  return host;
}

absl::StatusOr<UnitsPage> ReadUnitsPage(google::protobuf::io::ZeroCopyInputStream* bytes) {
  CodedInputStream in(bytes);
  UnitsPage page;
  while (const uint32_t tag = in.ReadTag()) {
    if (IsMessage(tag, v1::ListUnitsResponse::kNextPageTokenFieldNumber)) {
      uint32_t length = 0;
      if (!in.ReadVarint32(&length) ||
          !in.ReadString(&page.next_page_token, static_cast<int>(length))) {
        return Malformed("ListUnitsResponse");
      }
      continue;
    }
    page.units += IsMessage(tag, v1::ListUnitsResponse::kUnitsFieldNumber);
    page.layouts += IsMessage(tag, v1::ListUnitsResponse::kLayoutsFieldNumber);
    if (!WireFormatLite::SkipField(&in, tag)) return Malformed("ListUnitsResponse");
  }
  if (!in.ConsumedEntireMessage()) return Malformed("ListUnitsResponse");
  return page;
}

}  // namespace tessera
