#include "worker/worker_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <optional>
#include <string>

#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr int kGuardMs = 60000;  // against hanging alone

bool AwaitReadable(int fd) {
  pollfd entry = {fd, POLLIN, 0};
  return poll(&entry, 1, kGuardMs) == 1;
}

// Everything that the program started holds its end of the socket: end of file means that all of it
// is gone.
void ExpectNothingIsLeft(const WorkerProcess& worker) {
  ASSERT_TRUE(AwaitReadable(worker.socket()));
  char byte;
  EXPECT_EQ(recv(worker.socket(), &byte, 1, 0), 0);
}

TEST(WorkerProcessTest, WhatAnEndedProgramStartedIsKilled) {
  for (const std::string end : {"exit 3", "kill -9 $$"}) {
    auto worker = WorkerProcess::Spawn({"/bin/sh", "-c", "sleep 1000 & " + end});
    ASSERT_TRUE(worker.ok()) << worker.status();
    ASSERT_TRUE(AwaitReadable(worker->pidfd()));
    const std::optional<ExitStatus> status = worker->TryReap();
    ASSERT_TRUE(status.has_value());
    EXPECT_EQ(status->ToString(),
              end == "exit 3" ? "exited with code 3" : "was killed by signal 9 (Killed)");
    ExpectNothingIsLeft(*worker);
  }
}

TEST(WorkerProcessTest, SignalsReachWhatAWrapperStarted) {
  auto worker = WorkerProcess::Spawn({"/bin/sh", "-c", "sleep 1000; echo not reached"});
  ASSERT_TRUE(worker.ok()) << worker.status();
  worker->Signal(SIGKILL);
  ASSERT_TRUE(AwaitReadable(worker->pidfd()));
  EXPECT_EQ(worker->TryReap()->signal, SIGKILL);
  ExpectNothingIsLeft(*worker);
}

TEST(WorkerProcessTest, RunningProgramIsNotReaped) {
  auto worker = WorkerProcess::Spawn({"/bin/sh", "-c", "sleep 1000"});
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_FALSE(worker->TryReap().has_value());
}

}  // namespace
}  // namespace tessera
