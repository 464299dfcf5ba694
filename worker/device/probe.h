// What this machine could compute on, in one line for the log.
#ifndef TESSERA_WORKER_DEVICE_PROBE_H_
#define TESSERA_WORKER_DEVICE_PROBE_H_

#include <string>

namespace tessera {

// For example "no NVIDIA driver: computing on the CPU". "" in a build without CUDA, where there is
// nothing to say. Fast where there is no driver. Thread-safety: any thread.
std::string DescribeDevices();

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_PROBE_H_
