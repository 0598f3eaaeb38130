// tests/cpp/process.hpp: a second process for one test: this program again, running a CHILD of the
// same file. The two take turns by single characters; nothing sleeps.
//
//   CHILD(name) { ...; say('r'); hear(); }
//   TEST(...) { Process other("name", descriptor); other.hear(); ...; other.say('g'); other.wait();
//   }
#pragma once

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "check.hpp"

namespace weave::test {

// In a child: the test's end of the conversation, and the descriptor it was given.
inline constexpr int kTalk = 3;
inline constexpr int kGiven = 4;

inline void say_to(int end, char what) { CHECK_EQ(write(end, &what, 1), 1); }

// 0 when the other side is gone.
inline char hear_from(int end) {
  char what = 0;
  return read(end, &what, 1) == 1 ? what : '\0';
}

inline void say(char what) { say_to(kTalk, what); }
inline char hear() { return hear_from(kTalk); }

class Process {
 public:
  explicit Process(const char* child, int given = -1) {
    int ends[2] = {};
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    std::fflush(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      // Out of the way of the two numbers first, whatever they are now.
      const int talk = fcntl(ends[1], F_DUPFD_CLOEXEC, 16);
      const int keep = given < 0 ? -1 : fcntl(given, F_DUPFD_CLOEXEC, 16);
      dup2(talk, kTalk);
      if (keep >= 0) dup2(keep, kGiven);
      execl("/proc/self/exe", "test", "--child", child, nullptr);
      _exit(127);
    }
    close(ends[1]);
    talk_ = ends[0];
  }
  ~Process() {
    if (pid_ > 0) kill();
    close(talk_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void say(char what) const { say_to(talk_, what); }
  char hear() const { return hear_from(talk_); }
  pid_t pid() const { return pid_; }
  // Its exit status: 0 when its checks held.
  int wait() {
    int status = -1;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return status;
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    wait();
  }

 private:
  pid_t pid_ = 0;
  int talk_ = -1;
};

struct RegisterChild {
  RegisterChild(const char* name, void (*body)()) { children().push_back({name, body}); }
};

}  // namespace weave::test

#define CHILD(name)                                                              \
  static void child_##name();                                                    \
  static const weave::test::RegisterChild child_of_##name(#name, &child_##name); \
  static void child_##name()
