// A CUDA and an NCCL in host memory, for tests: GPUs are numbers, device memory is memory.
//
//   FakeCuda fake;
//   ... code under test with fake.api(), ranks as threads or one after the other ...
//   EXPECT_THAT(fake.violations(), IsEmpty());
//   EXPECT_EQ(fake.live(), 0);
//
// Streams are queues whose work is done late, when somebody asks for an event; a collective is done
// when every rank's has come to the head of its queue. Every access to memory is held against all
// earlier ones by vector clocks, so a missing wait is found whatever the order in which the work
// happened to run: two accesses, one of them a write, neither of which is ordered before the other
// by streams, events and the host's waits, are a violation. So are a collective that isn't in
// place, or touches memory that isn't registered, or differs between ranks; and an abort outside a
// group, or of a communicator that is no more. Communicators are non-blocking: a collective is on
// its stream only after nccl_comm_get_async_error has been asked.
//
// One at a time in a process. Thread-safety: any thread; the calls too.
#ifndef TESSERA_WORKER_DEVICE_FAKE_CUDA_API_H_
#define TESSERA_WORKER_DEVICE_FAKE_CUDA_API_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/device/cuda_api.h"

namespace tessera {

class FakeCuda {
 public:
  FakeCuda();
  ~FakeCuda();
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  const CudaApi* api() const;

  // The call with this number, from 0, fails. What frees something frees it nevertheless.
  void FailCall(int number);
  // The names of all calls that can fail, in order; the collectives' kernels as "the cast kernel"
  // and so on.
  std::vector<std::string> calls() const;
  int Count(const std::string& call) const;

  // Every communicator's nccl_comm_get_async_error says this from now on.
  void SetAsyncError(int result);

  // From now on a kernel, copy or memset that touches neither device memory nor registered host
  // memory is a violation. (Copies may use any host memory.)
  void RequireDeviceMemory();

  // The host itself reads or writes memory, now, after all that its waits have seen.
  void TouchByHost(int device, const void* memory, int64_t bytes, bool write,
                   const std::string& label);

  // Puts work of a workload on a stream that reads or writes memory.
  void Touch(CudaStreamHandle stream, const void* memory, int64_t bytes, bool write,
             const std::string& label);

  std::vector<std::string> violations() const;
  // Streams, events, device memory, communicators and registrations that nobody has freed.
  int live() const;
  // Of device memory, now.
  int64_t allocated_bytes() const;

  class World;

 private:
  std::unique_ptr<World> world_;
  CudaApi api_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_FAKE_CUDA_API_H_
