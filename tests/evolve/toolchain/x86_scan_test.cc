#include "evolve/toolchain/x86_scan.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace niche::evolve {
namespace {

TEST(X86Scan, NamesEachForbiddenInstruction) {
  const struct {
    std::vector<uint8_t> code;
    const char* name;
  } cases[] = {{{0x0f, 0x05}, "syscall"},
               {{0x0f, 0x34}, "sysenter"},
               {{0xcd, 0x80}, "int"},
               {{0x0f, 0x31}, "rdtsc"},
               {{0x0f, 0x01, 0xf9}, "rdtscp"},
               {{0x0f, 0x33}, "rdpmc"},
               {{0x0f, 0xae, 0x17}, "ldmxcsr"},
               {{0xc5, 0xf8, 0xae, 0x17}, "vldmxcsr"},
               {{0xf3, 0x48, 0x0f, 0xae, 0xd0}, "rd/wr fs/gs base"},
               {{0x0f, 0xa2}, "cpuid"}};
  for (const auto& c : cases) {
    std::vector<uint8_t> code = {0x90, 0x48, 0x89, 0xc8};  // nop; mov rax, rcx
    code.insert(code.end(), c.code.begin(), c.code.end());
    const auto found = find_forbidden_instruction(code);
    ASSERT_NE(found.name, nullptr) << c.name;
    EXPECT_STREQ(found.name, c.name);
    EXPECT_EQ(found.offset, 4u);
  }
}

TEST(X86Scan, ForbiddenBytesInsideAnImmediateAreNoInstruction) {
  const std::vector<uint8_t> code = {0xb8, 0x0f, 0x05, 0x00, 0x00, 0xc3};  // mov eax, 0x50f; ret
  EXPECT_EQ(find_forbidden_instruction(code).name, nullptr);
}

TEST(X86Scan, CutOffCodeIsUnknown) {
  const std::vector<uint8_t> code = {0x90, 0xe8, 0x01};
  const auto found = find_forbidden_instruction(code);
  EXPECT_STREQ(found.name, "unknown");
  EXPECT_EQ(found.offset, 1u);
}

// The disassembler of binutils over the maths library (SSE to AVX-512, hand-written and compiled code): both
// must cut the same instructions.
TEST(X86Scan, LengthsAgreeWithBinutilsOverTheMathsLibrary) {
  if (std::system("objdump --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "no objdump";
  size_t compared = 0, wrong = 0;
  for (const char* library : {"/lib/x86_64-linux-gnu/libm.so.6", "/lib/x86_64-linux-gnu/libmvec.so.1"}) {
    FILE* pipe =
        popen((std::string("objdump -d -w --section=.text ") + library + " 2>/dev/null").c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    char line[512];
    while (std::fgets(line, sizeof line, pipe) != nullptr) {
      // "   1234:\t48 89 c8             \tmov ..."
      const std::string text = line;
      const size_t first = text.find(":\t");
      if (first == std::string::npos) continue;
      const size_t last = text.find('\t', first + 2);
      if (last == std::string::npos || text.find("(bad)") != std::string::npos) continue;
      std::vector<uint8_t> bytes;
      for (size_t at = first + 2; at + 1 < last && std::isxdigit(static_cast<unsigned char>(text[at])) != 0;
           at += 3)
        bytes.push_back(static_cast<uint8_t>(std::stoi(text.substr(at, 2), nullptr, 16)));
      if (bytes.size() > 1 && bytes[0] == 0x9b)
        bytes.erase(bytes.begin());  // fwait, shown as one with its neighbour
      const size_t length = instruction_length(bytes);
      ++compared;
      if (length == bytes.size()) continue;
      if (++wrong <= 10) ADD_FAILURE() << length << " against " << bytes.size() << ": " << text;
    }
    pclose(pipe);
  }
  EXPECT_GT(compared, 50000u);
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace niche::evolve
