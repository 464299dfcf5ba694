// Streams and events of a GPU, over the seam (worker/device/cuda_api.h).
//
//   TESSERA_ASSIGN_OR_RETURN(auto compute, CudaStream::Create({.api = api, .name = "compute"}));
//   TESSERA_ASSIGN_OR_RETURN(auto done, CudaEvent::Record(*compute));
//   TESSERA_RETURN_IF_ERROR(other->WaitFor(*done));   // on the GPU; the host goes on
//   TESSERA_RETURN_IF_ERROR(Event(done).Wait());      // on the host
//
// Every error names the call, the GPU and the stream. Thread-safety: one thread at a time uses a
// stream, with the GPU made current in it (Create does that for its own thread); an event may be
// asked from any.
#ifndef TESSERA_WORKER_DEVICE_CUDA_DEVICE_H_
#define TESSERA_WORKER_DEVICE_CUDA_DEVICE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "worker/device/cuda_api.h"
#include "worker/device/device.h"

namespace tessera {

// How a host thread waits for a GPU: it asks again and again, at first without a pause, so that it
// can also look whether a peer is gone.
struct CudaWait {
  absl::Duration timeout = absl::Seconds(30);
  const Clock* clock = Clock::Real();
  // What is done between two questions. Null: nothing for 100 us, then sleeps of 50 us.
  std::function<void()> pause = nullptr;
};

// Returns when `passed` is true. DEADLINE_EXCEEDED: the timeout ("waited 30s for WHAT"); or what
// `passed` ends with.
absl::Status PollUntil(const CudaWait& wait, absl::FunctionRef<absl::StatusOr<bool>()> passed,
                       absl::string_view what);

// Host memory that kernels may use by its address, until it goes.
class RegisteredMemory {
 public:
  // INTERNAL, RESOURCE_EXHAUSTED: as CudaError; INTERNAL also where the GPU cannot do so. `memory`
  // outlives it.
  static absl::StatusOr<std::unique_ptr<RegisteredMemory>> Create(const CudaApi* api, int device,
                                                                  void* memory, int64_t bytes);
  ~RegisteredMemory();

 private:
  RegisteredMemory(const CudaApi* api, void* memory) : api_(api), memory_(memory) {}

  const CudaApi* const api_;
  void* const memory_;
};

class CudaEvent;

class CudaStream final : public Stream {
 public:
  struct Options {
    const CudaApi* api = nullptr;  // outlives the stream and its events
    int device = 0;
    std::string name = "";
    CudaWait wait = {};  // of its events
  };

  // Makes the GPU current in this thread. INTERNAL, RESOURCE_EXHAUSTED: as CudaError.
  static absl::StatusOr<std::unique_ptr<CudaStream>> Create(Options options);
  ~CudaStream() override;

  absl::string_view name() const override { return options_.name; }
  CudaStreamHandle handle() const { return handle_; }
  const Options& options() const { return options_; }

  // What is put on this stream from now on runs after `event`. INTERNAL: as CudaError.
  absl::Status WaitFor(const CudaEvent& event) const;
  // `result` of `call` on this stream, as a status that names both.
  absl::Status Error(int result, absl::string_view call) const;

 private:
  CudaStream(Options options, CudaStreamHandle handle)
      : options_(std::move(options)), handle_(handle) {}

  const Options options_;
  const CudaStreamHandle handle_;
};

// A point in a CudaStream, recorded once. May outlive the stream.
class CudaEvent final : public Event::State {
 public:
  // INTERNAL, RESOURCE_EXHAUSTED: as CudaError.
  static absl::StatusOr<std::shared_ptr<CudaEvent>> Record(const CudaStream& stream);
  ~CudaEvent() override;

  // INTERNAL: as CudaError; an error of anything that the GPU did before shows here.
  absl::StatusOr<bool> Poll() override;
  absl::Status Wait() override;

  // Time between two events that have passed. INTERNAL: as CudaError.
  absl::StatusOr<double> MicrosecondsSince(const CudaEvent& earlier) const;

  CudaEventHandle handle() const { return handle_; }

 private:
  CudaEvent(const CudaStream::Options& stream, CudaEventHandle handle)
      : stream_(stream), handle_(handle) {}
  absl::Status Error(int result, absl::string_view call) const;

  const CudaStream::Options stream_;  // of the stream; for messages and waits
  const CudaEventHandle handle_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_DEVICE_H_
