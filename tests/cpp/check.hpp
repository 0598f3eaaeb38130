// tests/cpp/check.hpp: the little that the C++ tests need. A test program is its TESTs in the order
// of the file; it prints one line per test and exits with the number of failed ones.
//
//   TEST(name) { CHECK(x); CHECK_EQ(a, b); CHECK_THROWS(expr, Type, "part of what()"); }
//   option("sequences", 300)  reads --sequences N of the command line or WEAVE_SEQUENCES
//   CHECK_ABORTS(expr, "part of stderr")  runs the program again, for this one test, up to this
//     expression: a forked child would be no driver process any more.
//
//   PROGRAM [TEST] [--seed N]   one test, or all. With a seed the devices that the tests open by
//     spec_with_seed() are stepped: no engine threads, operations in an order that is drawn from
//     the seed, on a clock of their own. The same seed gives the same order; a test that fails
//     prints the command that replays it.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace weave::test {

struct Case {
  const char* name;
  void (*body)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

inline std::atomic<int>& failures() {
  static std::atomic<int> count{0};
  return count;
}

inline const char*& running() {
  static const char* name = "";
  return name;
}

// What other programs of a test do (process.hpp), by name.
inline std::vector<Case>& children() {
  static std::vector<Case> all;
  return all;
}

// Of --seed; 0 when the engines run on threads.
inline unsigned long& seed() {
  static unsigned long value = 0;
  return value;
}

// A device spec as it is, or, under --seed, stepped with that seed.
inline std::string spec_with_seed(std::string spec) {
  if (seed() == 0) return spec;
  const auto begin = spec.find("&seed=");
  if (begin != std::string::npos) spec.erase(begin, spec.find('&', begin + 1) - begin);
  const auto first = spec.find("?seed=");
  if (first != std::string::npos) {
    const auto end = spec.find('&', first);
    spec.erase(first + 1, end == std::string::npos ? end : end - first);
    if (end == std::string::npos) spec.pop_back();
  }
  spec += spec.find('?') == std::string::npos ? '?' : '&';
  return spec + "engine=stepped&seed=" + std::to_string(seed());
}

// In a child of CHECK_ABORTS: the line to run; else 0.
inline int& line_to_abort_at() {
  static int line = 0;
  return line;
}

struct Register {
  Register(const char* name, void (*body)()) { cases().push_back({name, body}); }
};

template <class T>
std::string shown(const T& value) {
  if constexpr (requires(std::ostringstream& out) { out << value; }) {
    std::ostringstream out;
    out << value;
    return out.str();
  } else {
    return "(object)";
  }
}

inline void fail(const char* file, int line, const std::string& what) {
  ++failures();
  std::fprintf(stderr, "%s:%d: in %s: %s\n", file, line, running(), what.c_str());
}

template <class A, class B>
void check_equal(const A& got, const B& wanted, const char* text, const char* file, int line) {
  if (got == wanted) return;
  fail(file, line, std::string(text) + " is " + shown(got) + ", not " + shown(wanted));
}

inline std::string read_all(int descriptor) {
  std::string text;
  char buffer[4096];
  ssize_t count = 0;
  while ((count = read(descriptor, buffer, sizeof buffer)) > 0) {
    text.append(buffer, static_cast<std::size_t>(count));
  }
  return text;
}

inline void check_aborts(const char* file, int line, const char* wanted) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return fail(file, line, "no pipe");
  const std::string at = std::to_string(line);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const rlimit none{};
    setrlimit(RLIMIT_CORE, &none);
    dup2(ends[1], STDERR_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    const std::string seeded = std::to_string(seed());
    execl("/proc/self/exe", "test", running(), "--seed", seeded.c_str(), "--line", at.c_str(),
          nullptr);
    _exit(127);
  }
  close(ends[1]);
  const auto text = read_all(ends[0]);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT) {
    return fail(file, line, "no abort; output: " + text);
  }
  if (text.find(wanted) == std::string::npos) {
    fail(file, line, std::string("aborted without '") + wanted + "': " + text);
  }
}

// The value behind "--name" on the command line, else of the environment's WEAVE_NAME, else `none`.
inline std::vector<std::string>& arguments() {
  static std::vector<std::string> all;
  return all;
}

inline std::uint64_t option(const std::string& name, std::uint64_t none) {
  const auto& all = arguments();
  for (std::size_t index = 0; index + 1 < all.size(); ++index) {
    if (all[index] == "--" + name) return std::strtoull(all[index + 1].c_str(), nullptr, 0);
  }
  std::string variable = "WEAVE_" + name;
  for (char& letter : variable) letter = static_cast<char>(std::toupper(letter));
  const char* value = std::getenv(variable.c_str());
  return value == nullptr ? none : std::strtoull(value, nullptr, 0);
}

// Reads the arguments; returns the name of the one test to run, or null for all.
inline const char* parse(int argc, char** argv) {
  const char* only = nullptr;
  for (int i = 1; i < argc; ++i) {
    const bool has_value = i + 1 < argc;
    if (std::strcmp(argv[i], "--seed") == 0 && has_value) {
      seed() = std::strtoul(argv[++i], nullptr, 10);
    } else if (std::strcmp(argv[i], "--line") == 0 && has_value) {
      line_to_abort_at() = std::atoi(argv[++i]);
    } else if (std::strncmp(argv[i], "--", 2) == 0 && has_value) {
      ++i;  // for option()
    } else {
      only = argv[i];
    }
  }
  return only;
}

inline int run_child(const char* name) {
  running() = name;
  for (const auto& child : children()) {
    if (std::strcmp(child.name, name) == 0) child.body();
  }
  return failures() == 0 ? 0 : 1;
}

inline int run_all(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--child") == 0) return run_child(argv[2]);
  const char* only = parse(argc, argv);
  arguments().assign(argv + 1, argv + argc);
  for (const auto& test : cases()) {
    if (only != nullptr && std::strcmp(only, test.name) != 0) continue;
    running() = test.name;
    const int before = failures();
    test.body();
    std::printf("%s %s\n", failures() == before ? "ok  " : "FAIL", test.name);
    if (failures() != before && seed() != 0) {
      std::printf("replay: %s %s --seed %lu\n", argv[0], test.name, seed());
    }
    std::fflush(stdout);
  }
  return failures() == 0 ? 0 : 1;
}

}  // namespace weave::test

#define TEST(name)                                                         \
  static void test_##name();                                               \
  static const weave::test::Register register_##name(#name, &test_##name); \
  static void test_##name()

#define CHECK(condition)              \
  ((condition) ? static_cast<void>(0) \
               : weave::test::fail(__FILE__, __LINE__, #condition " is false"))

#define CHECK_EQ(got, wanted) weave::test::check_equal((got), (wanted), #got, __FILE__, __LINE__)

#define CHECK_THROWS(expression, type, wanted)                                                     \
  do {                                                                                             \
    try {                                                                                          \
      static_cast<void>(expression);                                                               \
      weave::test::fail(__FILE__, __LINE__, #expression " threw nothing");                         \
    } catch (const type& caught) {                                                                 \
      if (std::string(caught.what()).find(wanted) == std::string::npos) {                          \
        weave::test::fail(__FILE__, __LINE__, std::string(#expression " said: ") + caught.what()); \
      }                                                                                            \
    }                                                                                              \
  } while (false)

#define CHECK_ABORTS(expression, wanted)                     \
  do {                                                       \
    if (weave::test::line_to_abort_at() == __LINE__) {       \
      static_cast<void>(expression);                         \
      std::exit(0);                                          \
    } else if (weave::test::line_to_abort_at() == 0) {       \
      weave::test::check_aborts(__FILE__, __LINE__, wanted); \
    }                                                        \
  } while (false)

int main(int argc, char** argv) { return weave::test::run_all(argc, argv); }
