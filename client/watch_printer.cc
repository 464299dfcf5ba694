#include "client/watch_printer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/command.h"
#include "client/job_tables.h"
#include "common/logging.h"

namespace tessera {

void WatchPrinter::PrintLine(const std::string& line) { Print(absl::StrCat(line, "\n")); }

void WatchPrinter::PrintNote(const std::string& line) { LogInfo(line); }

WatchHandlers WatchPrinter::Handlers() {
  return {
      .on_event = [this](const v1::WatchJobResponse& event) { OnEvent(event); },
      .on_broken =
          [this](const absl::Status& why, absl::Duration patience) {
            options_.err(absl::StrCat("the watch broke off after step ", step_, " (", why.message(),
                                      "); trying again for ", absl::FormatDuration(patience)));
          },
      .on_resumed = [this] { options_.err(absl::StrCat("the watch goes on after step ", step_)); }};
}

void WatchPrinter::OnEvent(const v1::WatchJobResponse& event) {
  if (event.missed() > 0) {
    options_.err(absl::StrCat("missed ", event.missed(),
                              " earlier lines of this job: the coordinator does not keep them"));
  }
  if (event.has_job()) return OnJob(event.job());
  if (event.has_incident()) return options_.err(IncidentLine(event.incident()));
  step_ = event.progress().step();
  options_.out(ProgressLine(event.progress()));
}

void WatchPrinter::OnJob(const v1::Job& job) {
  // Only its reason may be new, while it forms for example.
  const bool same = std::exchange(state_, job.state()) == job.state();
  if (options_.states && !same) {
    options_.out(absl::StrCat("state ", v1::JobState_Name(job.state())));
  }
  if (std::exchange(draining_, job.draining()) || !draining_) return;
  if (job.state() == v1::RUNNING) {
    options_.err(absl::StrCat("job ", job.name(), " ", job.reason()));
  } else if (job.state() == v1::RECOVERING) {
    options_.err(absl::StrCat("job ", job.name(), " is drained: it stops once it runs again"));
  }
}

}  // namespace tessera
