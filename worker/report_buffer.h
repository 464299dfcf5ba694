// What a rank has to report and has not sent yet: the newest state of each figure, and the last
// lines of progress.
//
//   buffer.Add(report);
//   v1::ReportStatsRequest request = buffer.Take();
//   if (!Send(request)) buffer.PutBack(std::move(request));
//
// However long the coordinator stays away, it holds at most one sample for each unit and operation
// and kMaxProgressLines lines. Thread-safety: none.
#ifndef TESSERA_WORKER_REPORT_BUFFER_H_
#define TESSERA_WORKER_REPORT_BUFFER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "tessera/v1/membership_service.pb.h"

namespace tessera {

class ReportBuffer {
 public:
  // Older lines than the last so many are dropped.
  static constexpr size_t kMaxProgressLines = 1000;

  // A report newer than all before it.
  void Add(v1::ReportStatsRequest report);
  // All that there is, as one report. Leaves nothing.
  v1::ReportStatsRequest Take();
  // What Take gave and nobody got; what was added since is newer.
  void PutBack(v1::ReportStatsRequest report);

  bool empty() const { return empty_; }

 private:
  void Keep(v1::ReportStatsRequest report);

  bool empty_ = true;
  v1::ReportStatsRequest head_;                                     // without samples and progress
  std::map<std::pair<int32_t, int>, v1::OperationSample> samples_;  // by unit and operation
  std::deque<v1::Progress> progress_;                               // oldest first
};

}  // namespace tessera

#endif  // TESSERA_WORKER_REPORT_BUFFER_H_
