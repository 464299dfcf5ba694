// What `tessera watch` and `tessera run` say while a job runs: states and progress on stdout, where
// programs read them, and on stderr what became of the watch itself.
//
//   WatchPrinter printer({.states = true});
//   client.WatchJob("gpt", printer.Handlers());
//
// Thread-safety: none; the thread that watches calls.
#ifndef TESSERA_CLIENT_WATCH_PRINTER_H_
#define TESSERA_CLIENT_WATCH_PRINTER_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "client/client.h"
#include "tessera/v1/job_service.pb.h"

namespace tessera {

class WatchPrinter {
 public:
  struct Options {
    // A line "state FORMING" for each state that the job comes into; else progress alone.
    bool states = false;
    // Both for a line without its newline.
    std::function<void(const std::string&)> out = PrintLine;
    std::function<void(const std::string&)> err = PrintNote;
  };
  explicit WatchPrinter(Options options) : options_(std::move(options)) {}

  // They use the printer.
  WatchHandlers Handlers();

 private:
  static void PrintLine(const std::string& line);
  static void PrintNote(const std::string& line);
  void OnEvent(const v1::WatchJobResponse& event);
  void OnJob(const v1::Job& job);

  const Options options_;
  v1::JobState state_ = v1::JOB_STATE_UNSPECIFIED;  // that was printed last
  bool draining_ = false;
  int64_t step_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_WATCH_PRINTER_H_
