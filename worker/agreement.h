// Before ranks move bytes they see that they hold the same: plan, layout and settings, each as the
// rank has worked it out itself, in one text whose lines can be told apart.
//
//   const Agreement held(AgreementText(units, layout, layouts, spec));
//   TESSERA_RETURN_IF_ERROR(held.Check(exchange));
//
// Where all agree this is one exchange of 40 bytes. Where they do not, the ranks search the first
// line that differs (as many exchanges as its number has bits) and all end with the same error,
// which says what it is, in which unit, and which ranks hold what. Nothing in the text depends on
// the machine: a rank without AVX2 agrees with one that has it.
#ifndef TESSERA_WORKER_AGREEMENT_H_
#define TESSERA_WORKER_AGREEMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

// PlanText and LayoutText (common/fingerprint.h), then for every field of the job but its model,
// in order of its path, a line
//   setting PATH VALUE
std::string AgreementText(const std::vector<v1::Unit>& units, const v1::Layout& layout,
                          const std::vector<v1::UnitLayout>& layouts, const v1::JobSpec& spec);

class Agreement {
 public:
  // As Collectives::Exchange: every rank's payload of at most 128 bytes, in rank order.
  using Exchange = absl::FunctionRef<absl::StatusOr<std::vector<std::string>>(
      absl::string_view payload, absl::string_view what)>;

  explicit Agreement(std::string text);

  // Of the whole text; never 0.
  uint64_t fingerprint() const;

  // Every rank of the job calls it at the same moment. FAILED_PRECONDITION (RANKS_DISAGREE): they
  // do not hold the same; blames a rank of the fewest, where these are fewer than others.
  absl::Status Check(Exchange exchange) const;

 private:
  absl::Status Explain(Exchange exchange, uint64_t lines) const;
  // Of the first `lines` lines; where there are fewer it counts how many are missing.
  uint64_t Prefix(uint64_t lines) const;
  absl::string_view Line(uint64_t index) const;
  // "the plan, in unit h.0": where line `index` is.
  std::string PlaceOf(uint64_t index) const;

  const std::string text_;
  const std::string digest_;  // SHA-256
  std::vector<absl::string_view> lines_;
  std::vector<uint64_t> prefixes_;  // by number of lines
};

}  // namespace tessera

#endif  // TESSERA_WORKER_AGREEMENT_H_
