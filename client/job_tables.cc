#include "client/job_tables.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/text_table.h"

namespace tessera {
namespace {

absl::Time ToTime(const google::protobuf::Timestamp& time) {
  return absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
}

}  // namespace

std::string JobsTable(const v1::ListJobsResponse& jobs) {
  TextTable table({{"NAME", Align::kLeft}, {"STATE", Align::kLeft}, {"STEP"}, {"LOSS"}, {"AGE"}});
  for (const v1::Job& job : jobs.jobs()) {
    table.AddRow({job.name(), v1::JobState_Name(job.state()),
                  absl::StrCat(job.step(), "/", job.steps()),
                  job.has_loss() ? absl::StrFormat("%.3f", job.loss()) : "-",
                  AgeText(ToTime(jobs.read_time()) - ToTime(job.create_time()))});
  }
  return table.ToString();
}

std::string ProgressLine(const v1::Progress& progress) {
  std::string line =
      absl::StrFormat("step %d/%d loss %.3f", progress.step(), progress.steps(), progress.loss());
  if (progress.has_val_loss()) absl::StrAppendFormat(&line, " val %.3f", progress.val_loss());
  if (progress.tokens_per_second() > 0) {
    absl::StrAppendFormat(&line, " tokens/s %.0f", progress.tokens_per_second());
  }
  if (progress.has_time_left()) {
    absl::StrAppend(&line, " left ",
                    TimeLeftText(absl::Seconds(progress.time_left().seconds()) +
                                 absl::Nanoseconds(progress.time_left().nanos())));
  }
  return line;
}

std::string IncidentLine(const v1::Incident& incident) {
  return absl::StrCat("incident ", incident.number(), " ", v1::Incident::Kind_Name(incident.kind()),
                      ": ", incident.outcome().empty() ? incident.message() : incident.outcome());
}

std::string IncidentsText(absl::Span<const v1::Incident> incidents) {
  if (incidents.empty()) return "no incidents\n";
  std::string text;
  for (const v1::Incident& incident : incidents) {
    absl::StrAppend(
        &text, text.empty() ? "" : "\n", incident.number(), " ",
        v1::Incident::Kind_Name(incident.kind()), " at ",
        absl::FormatTime("%Y-%m-%d %H:%M:%S", ToTime(incident.time()), absl::UTCTimeZone()),
        ", generation ", incident.generation(), ", step ", incident.step(), "\n  ",
        incident.message(), "\n");
    if (!incident.outcome().empty())
      absl::StrAppend(&text, "  outcome: ", incident.outcome(), "\n");
    for (const std::string& position : incident.positions())
      absl::StrAppend(&text, "  ", position, "\n");
  }
  return text;
}

std::string TimeLeftText(absl::Duration left) {
  const absl::Duration unit = left > absl::Hours(1) ? absl::Minutes(1) : absl::Seconds(1);
  return absl::FormatDuration(std::max(absl::Ceil(left, unit), absl::Seconds(1)));
}

std::string AgeText(absl::Duration age) {
  const int64_t seconds = std::max<int64_t>(absl::ToInt64Seconds(age), 0);
  if (seconds < 120) return absl::StrCat(seconds, "s");
  if (seconds < 120 * 60) return absl::StrCat(seconds / 60, "m");
  if (seconds < 48 * 3600) return absl::StrCat(seconds / 3600, "h");
  return absl::StrCat(seconds / 86400, "d");
}

}  // namespace tessera
