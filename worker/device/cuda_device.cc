#include "worker/device/cuda_device.h"

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

constexpr auto kSpin = std::chrono::microseconds(100);
constexpr auto kPause = std::chrono::microseconds(50);

absl::Status ErrorOn(const CudaStream::Options& stream, int result, absl::string_view call) {
  if (result == kCudaSuccess) return absl::OkStatus();
  return CudaError(*stream.api, result, absl::StrCat(call, " of stream ", stream.name),
                   stream.device);
}

}  // namespace

absl::Status PollUntil(const CudaWait& wait, absl::FunctionRef<absl::StatusOr<bool>()> passed,
                       absl::string_view what) {
  const absl::Time deadline = wait.clock->Now() + wait.timeout;
  const auto spin_until = std::chrono::steady_clock::now() + kSpin;
  while (true) {
    TESSERA_ASSIGN_OR_RETURN(const bool done, passed());
    if (done) return absl::OkStatus();
    if (wait.clock->Now() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("waited ", absl::FormatDuration(wait.timeout), " for ", what));
    }
    if (wait.pause) {
      wait.pause();
    } else if (std::chrono::steady_clock::now() > spin_until) {
      std::this_thread::sleep_for(kPause);
    }
  }
}

absl::StatusOr<std::unique_ptr<RegisteredMemory>> RegisteredMemory::Create(const CudaApi* api,
                                                                           int device, void* memory,
                                                                           int64_t bytes) {
  TESSERA_RETURN_IF_ERROR(CudaError(*api, api->set_device(device), "cudaSetDevice", device));
  TESSERA_RETURN_IF_ERROR(CudaError(*api, api->host_register(memory, bytes),
                                    absl::StrCat("cudaHostRegister of ", bytes, " bytes"), device));
  return std::unique_ptr<RegisteredMemory>(new RegisteredMemory(api, memory));
}

// There is nobody to tell of an error.
RegisteredMemory::~RegisteredMemory() { api_->host_unregister(memory_); }

absl::StatusOr<std::unique_ptr<CudaStream>> CudaStream::Create(Options options) {
  TESSERA_RETURN_IF_ERROR(
      ErrorOn(options, options.api->set_device(options.device), "cudaSetDevice"));
  CudaStreamHandle handle = nullptr;
  TESSERA_RETURN_IF_ERROR(
      ErrorOn(options, options.api->stream_create(&handle), "cudaStreamCreateWithFlags"));
  return std::unique_ptr<CudaStream>(new CudaStream(std::move(options), handle));
}

// A stream may be destroyed while it works; there is nobody to tell of an error.
CudaStream::~CudaStream() { options_.api->stream_destroy(handle_); }

absl::Status CudaStream::Error(int result, absl::string_view call) const {
  return ErrorOn(options_, result, call);
}

absl::Status CudaStream::WaitFor(const CudaEvent& event) const {
  return Error(options_.api->stream_wait_event(handle_, event.handle()), "cudaStreamWaitEvent");
}

absl::StatusOr<std::shared_ptr<CudaEvent>> CudaEvent::Record(const CudaStream& stream) {
  const CudaApi& api = *stream.options().api;
  CudaEventHandle handle = nullptr;
  TESSERA_RETURN_IF_ERROR(stream.Error(api.event_create(&handle), "cudaEventCreateWithFlags"));
  std::shared_ptr<CudaEvent> event(new CudaEvent(stream.options(), handle));
  TESSERA_RETURN_IF_ERROR(
      stream.Error(api.event_record(handle, stream.handle()), "cudaEventRecord"));
  return event;
}

CudaEvent::~CudaEvent() { stream_.api->event_destroy(handle_); }

absl::Status CudaEvent::Error(int result, absl::string_view call) const {
  return ErrorOn(stream_, result, call);
}

absl::StatusOr<bool> CudaEvent::Poll() {
  const int result = stream_.api->event_query(handle_);
  if (result == kCudaErrorNotReady) return false;
  TESSERA_RETURN_IF_ERROR(Error(result, "cudaEventQuery"));
  return true;
}

absl::Status CudaEvent::Wait() {
  return PollUntil(
      stream_.wait, [this] { return Poll(); },
      absl::StrCat("an event of stream ", stream_.name, " on GPU ", stream_.device));
}

absl::StatusOr<double> CudaEvent::MicrosecondsSince(const CudaEvent& earlier) const {
  float milliseconds = 0;
  TESSERA_RETURN_IF_ERROR(
      Error(stream_.api->event_elapsed_ms(&milliseconds, earlier.handle_, handle_),
            "cudaEventElapsedTime"));
  return milliseconds * 1e3;
}

}  // namespace tessera
