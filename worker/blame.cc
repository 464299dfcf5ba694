#include "worker/blame.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

constexpr char kBlamedRankUrl[] = "tessera.blamed_rank";

}  // namespace

absl::Status BlameRank(absl::Status status, int rank) {
  if (!status.ok()) status.SetPayload(kBlamedRankUrl, absl::Cord(absl::StrCat(rank)));
  return status;
}

std::optional<int> BlamedRank(const absl::Status& status) {
  const auto payload = status.GetPayload(kBlamedRankUrl);
  int rank = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &rank)) return std::nullopt;
  return rank;
}

}  // namespace tessera
