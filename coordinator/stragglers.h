// Ranks that are slower than the others for a time, and where they lose it. A rank's own work of a
// step is what no other rank makes it wait for: UNSHARD, REDUCE, OPTIMIZER, FORWARD and BACKWARD,
// summed over units.
//
//   StragglerDetector detector(/*units=*/5, /*ranks=*/4, {});
//   detector.Record(rank, report.step(), report.samples());      as reports come
//   for (const auto& change : detector.Advance(now)) ...         as time goes
//
// Time is cut into rounds of at least `period`, in which every rank has reported a step. In a round
// a rank is slow if its own work of a step is more than `factor` times the median over ranks (the
// lower middle: of two ranks the faster) and the excess is more than `least_share` of the step. One
// that is slow in every round for `lasting` is a straggler; it ceases to be one when for as long it
// was in none above half of the way from 1 to `factor`. So a hiccup, or noise from round to round,
// is none.
//
// Memory: four bytes for each rank, unit and operation, and more for at most 16 slow ranks; where
// there are more, the others are not told where. Pure; not thread-safe.
#ifndef TESSERA_COORDINATOR_STRAGGLERS_H_
#define TESSERA_COORDINATOR_STRAGGLERS_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "google/protobuf/repeated_field.h"
#include "tessera/v1/stats.pb.h"

namespace tessera {

class StragglerDetector {
 public:
  struct Options {
    double factor = 1.5;
    absl::Duration lasting = absl::Seconds(10);
    absl::Duration period = absl::Seconds(1);
    double least_share = 0.05;
  };
  // What a rank has become.
  struct Change {
    int rank = 0;
    bool begins = false;  // else it is no straggler any more
    // When its slowness began (or, for the end, ended).
    absl::Time since;
    // Of a step, in the last round.
    double own_us = 0;
    double median_us = 0;
    // Where it loses most: its time of a step there, and the mean of the others.
    int unit = -1;  // not known
    v1::Operation operation = v1::OPERATION_UNSPECIFIED;
    double place_us = 0;
    double place_others_us = 0;
  };

  StragglerDetector() : StragglerDetector(0, 0, Options()) {}
  StragglerDetector(int units, int ranks, Options options);

  // `step`: committed when the samples were taken. Samples count since the rank started, as in a
  // report; those that are wrong are left out.
  void Record(int rank, int64_t step,
              const google::protobuf::RepeatedPtrField<v1::OperationSample>& samples);
  std::vector<Change> Advance(absl::Time now);

 private:
  static constexpr int kOperations = 5;
  static constexpr size_t kMostPlaces = 16;
  // Where a rank that is slow, and the others since then, spend their time.
  struct Places {
    std::vector<double> own_us, others_us;  // by unit and operation
    int64_t own_steps = 0, others_steps = 0;
  };
  struct Rank {
    int64_t reported = -1;  // step of the last report; -1: none yet
    int64_t steps = 0;      // reported in this round
    double own_us = 0;      // in this round
    // Since when it was slow in every round; InfiniteFuture: in the last it was not.
    absl::Time slow_since = absl::InfiniteFuture();
    // The same of a straggler that is quick again.
    absl::Time quick_since = absl::InfiniteFuture();
    bool straggles = false;
  };

  int PlaceOf(int unit, v1::Operation operation) const;
  void Count(int rank, int64_t steps, const std::vector<std::pair<int, double>>& spent);
  // Whether the rank has become, or ceased to be, a straggler.
  bool Judge(int rank, bool slow, bool quick, absl::Time began, absl::Time now);
  void Locate(int rank, Change& change) const;
  void BeginRound(absl::Time now);

  int units_;
  Options options_;
  std::vector<Rank> ranks_;
  std::vector<std::vector<uint32_t>> totals_us_;  // by rank; modulo 2^32, which differences survive
  std::map<int, Places> places_;                  // of slow ranks, at most kMostPlaces
  absl::Time round_began_ = absl::InfinitePast();
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_STRAGGLERS_H_
