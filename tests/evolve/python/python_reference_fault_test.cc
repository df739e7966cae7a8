// Interpreters that crash, hang, talk nonsense or answer what was not asked: each is a Status that names the
// Definition, the program and what happened, and the process that asked goes on.
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/evolve/python/scaled_problem.h"
#include "tests/evolve/temp_dir.h"

namespace niche::evolve::python::test {
namespace {

using nlohmann::json;

std::string frame(const std::string& text) {
  const auto n = static_cast<uint32_t>(text.size());
  return std::string{static_cast<char>(n & 0xff), static_cast<char>(n >> 8 & 0xff), 0, 0} + text;
}

std::string greeting(json parameters = json::parse(R"([["x",false],["w",false],["total",false]])")) {
  return frame(json{{"python", "3.0.0"}, {"torch", "9.9"}, {"parameters", parameters}}.dump());
}

class FakePython : public testing::Test {
 protected:
  // A program that takes no notice of its arguments and does `body`; `get` is a read of one message.
  std::string program(const std::string& body) {
    const std::string path = dir_.path() + "/python";
    std::ofstream(path) << "#!/bin/sh\nget() { dd bs=1048576 count=1 <&3 >/dev/null 2>&1; }\n"
                        << "put() { cat \"" << dir_.path() << "/$1\" >&3; }\n"
                        << body << "\n";
    chmod(path.c_str(), 0700);
    return path;
  }
  void message(const std::string& name, const std::string& bytes) const {
    std::ofstream(dir_.path() + "/" + name, std::ios::binary) << bytes;
  }
  // Greets as it should, waits for a question, and then does `body`.
  std::string after_greeting(const std::string& body) {
    message("hello", greeting());
    return program("get; put hello; get\n" + body);
  }
  static Status ask(const std::string& program, TimeLimits limits = {20, 60}) {
    PythonReference reference = scaled_reference(program, limits);
    ScaledCall call(2);
    const Status first = reference.run(call.problem, call.args, call.out);
    if (!first.ok() && first.code() != Code::kInternal && first.code() != Code::kUnsupported) {
      EXPECT_EQ(reference.run(call.problem, call.args, call.out).to_string(), first.to_string())
          << "an interpreter that failed once is not asked again";
    }
    return first;
  }
  TempDir dir_;
};

struct Fault {
  const char* body;
  Code code;
  const char* says;
};

TEST_F(FakePython, FaultsAtItsStartAreNamed) {
  message("word", frame("hello"));
  message("huge", "\xff\xff\xff\xff and more");
  message("half", std::string("\x40\0\0\0{\"pyth", 10));
  message("list", frame("[1,2]"));
  message("odd", frame(R"({"parameters":7})"));
  message("other", greeting(json::parse(R"([["x",false],["v",false]])")));
  message("fewer", greeting(json::parse(R"([["x",false],["w",false]])")));
  message("no_torch", frame(R"({"no_torch":"ModuleNotFoundError: No module named 'torch'"})"));
  message("broken", frame(R"({"error":"SyntaxError: invalid syntax, line 3"})"));
  const Fault all[] = {
      {"exit 3", Code::kIo, "ended with status 3"},
      {"kill -SEGV $$", Code::kIo, "ended by signal 11"},
      {"echo 'it is the disk' >&2; exit 1", Code::kIo, "its last words: it is the disk"},
      {"get; put word; get", Code::kCorrupt, "answered 'hello'"},
      {"get; put huge; get", Code::kCorrupt, "claims 4294967295 bytes"},
      {"get; put half; exit 0", Code::kCorrupt, "ended inside a frame"},
      {"get; put list; get", Code::kCorrupt, "answered '[1,2]'"},
      {"get; put odd; get", Code::kCorrupt, "nonsense"},
      {"get; put other; get", Code::kUnsupported, "'v', which is neither an input nor an attribute"},
      {"get; put fewer; get", Code::kUnsupported, "does not take the input 'total'"},
      {"get; put no_torch; get", Code::kUnsupported, "has no torch: ModuleNotFoundError"},
      {"get; put broken; get", Code::kUnsupported, "line 3"},
  };
  for (const Fault& f : all) {
    const Status s = ask(program(f.body));
    EXPECT_EQ(s.code(), f.code) << f.body << ": " << s.to_string();
    EXPECT_NE(s.message().find(f.says), std::string::npos) << f.body << ": " << s.to_string();
    EXPECT_EQ(s.message().find("definition 'scaled_n4': "), 0u) << s.to_string();
  }
}

TEST_F(FakePython, FaultsAtAQuestionAreNamed) {
  const auto answer = [&](const char* name, const json& j) { message(name, frame(j.dump())); };
  const json y{{"floating", true}, {"shape", {2, 4}}}, count{{"floating", false}, {"shape", {2}}};
  json fewer = json::array({y}), wide = json::array({y, count}), integral = json::array({y, count});
  wide[0]["shape"] = {2, 5};
  integral[0]["floating"] = false;
  message("word", frame("yes"));
  message("half", std::string("\x40\0\0\0{\"num", 9));
  answer("earlier", {{"number", 0}, {"outputs", {y, count}}});
  answer("fewer", {{"number", 1}, {"outputs", fewer}});
  answer("wide", {{"number", 1}, {"outputs", wide}});
  answer("integral", {{"number", 1}, {"outputs", integral}});
  answer("odd", {{"number", 1}, {"outputs", {7, 8}}});
  answer("raised", {{"number", 1}, {"error", "RuntimeError: no such size, line 4"}});
  const Fault all[] = {
      {"kill -SEGV $$", Code::kIo, "ended by signal 11"},
      {"echo 'out of luck'; exit 0", Code::kIo, "ended with status 0; its last words: out of luck"},
      {"put word; get", Code::kCorrupt, "answered 'yes'"},
      {"put half; exit 0", Code::kCorrupt, "ended inside a frame"},
      {"put earlier; get", Code::kCorrupt, "another question"},
      {"put fewer; get", Code::kUnsupported, "returned 1 tensors, the Definition has 2 outputs"},
      {"put wide; get", Code::kUnsupported, "output 'y' as [2,5], declared [2,4] at M=2"},
      {"put integral; get", Code::kUnsupported, "output 'y' as integers, declared floating"},
      {"put odd; get", Code::kCorrupt, "nonsense"},
      {"put raised; get", Code::kInternal, "reference failed at M=2: RuntimeError: no such size, line 4"},
  };
  for (const Fault& f : all) {
    PythonReference reference = scaled_reference(after_greeting(f.body), {20, 60});
    ScaledCall call(2);
    const Status s = reference.run(call.problem, call.args, call.out);
    EXPECT_EQ(s.code(), f.code) << f.body << ": " << s.to_string();
    EXPECT_NE(s.message().find(f.says), std::string::npos) << f.body << ": " << s.to_string();
  }
}

TEST_F(FakePython, ResultsThatItOnlyClaimsToHaveWrittenAreNoNumbers) {
  message(
      "done",
      frame(R"({"number":1,"outputs":[{"floating":true,"shape":[2,4]},{"floating":false,"shape":[2]}]})"));
  PythonReference reference = scaled_reference(after_greeting("put done; get"), {20, 60});
  ScaledCall call(2);
  ASSERT_TRUE(reference.run(call.problem, call.args, call.out).ok());
  for (double v : call.y) EXPECT_TRUE(std::isnan(v)) << v;
  for (double v : call.totals) EXPECT_TRUE(std::isnan(v)) << v;
  for (int64_t v : call.count) EXPECT_EQ(v, -1);
}

TEST_F(FakePython, OneThatHangsIsEndedByWallTimeOrCpuTime) {
  for (const char* body : {"sleep 1000", "get; sleep 1000"}) {
    const Status s = ask(program(body), {1000, 0.3});
    EXPECT_EQ(s.code(), Code::kIo) << s.to_string();
    EXPECT_NE(s.message().find("no answer within 0.3 s"), std::string::npos) << s.to_string();
  }
  const Status spins = ask(after_greeting("while :; do :; done"), {0.3, 1000});
  EXPECT_EQ(spins.code(), Code::kIo) << spins.to_string();
  EXPECT_NE(spins.message().find("no answer within 0.3 s of CPU time"), std::string::npos)
      << spins.to_string();
}

TEST_F(FakePython, ItsHelpersDoNotOutliveIt) {
  // The helper tells its number by what it prints: the walls let it write no file.
  const Status s = ask(program("sleep 1000 & echo helper $!; exit 1"));
  const size_t at = s.message().find("helper ");
  ASSERT_NE(at, std::string::npos) << s.to_string();
  const std::string proc = "/proc/" + std::to_string(std::stoi(s.message().substr(at + 7)));
  const auto running = [&] {
    std::ifstream in(proc + "/stat");
    std::string text((std::istreambuf_iterator<char>(in)), {});
    return !text.empty() && text.find(") Z ") == std::string::npos;
  };
  for (int i = 0; i < 1000 && running(); ++i) usleep(10'000);
  EXPECT_FALSE(running()) << proc;
}

TEST_F(FakePython, TheWallsHoldNoFileIsWrittenAndNoSocketOpened) {
  const std::string probe = dir_.path() + "/written";
  const Status s = ask(program("echo x 2>/dev/null > " + probe +
                               "; python3 -c 'import socket; socket.socket()' 2>&1 | tail -1; exit 1"));
  EXPECT_FALSE(std::filesystem::exists(probe) && std::filesystem::file_size(probe) > 0);
  EXPECT_NE(s.message().find("PermissionError"), std::string::npos) << s.to_string();
}

TEST_F(FakePython, AProgramThatIsNotThereIsNamed) {
  const Status s = ask("/no/such/python");
  EXPECT_EQ(s.code(), Code::kUnsupported);
  EXPECT_NE(s.message().find("python_program is '/no/such/python'"), std::string::npos) << s.to_string();
  std::ofstream(dir_.path() + "/data") << "no program";
  EXPECT_NE(ask(dir_.path() + "/data").message().find("is no program"), std::string::npos);
}

// A torch must be missed by the real driver too: -S hides every installed package.
TEST_F(FakePython, TheRealDriverSaysThatTorchIsMissing) {
  const Status s = ask(program("exec python3 -S \"$@\""));
  EXPECT_EQ(s.code(), Code::kUnsupported) << s.to_string();
  EXPECT_NE(s.message().find("has no torch: ModuleNotFoundError"), std::string::npos) << s.to_string();
}

}  // namespace
}  // namespace niche::evolve::python::test
