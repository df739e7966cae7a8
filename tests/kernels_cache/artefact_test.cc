#include "kernels_cache/artefact.h"

#include <dlfcn.h>

#include <fstream>

#include "test_support.h"

namespace niche::kernels_cache {
namespace {

std::vector<uint8_t> read_file(const char* path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

KernelRecord record_with(const char* library) {
  KernelRecord r = test_record(1);
  r.artefact = read_file(library);
  r.artefact_sha256 = to_hex(sha256(r.artefact));
  return r;
}

int answer_of(void* library) {
  EXPECT_NE(library, nullptr) << ::dlerror();
  if (library == nullptr) return -1;
  const auto f = reinterpret_cast<int (*)()>(::dlsym(library, "niche_answer"));
  return f == nullptr ? -1 : f();
}

TEST(Artefact, LoadsFromTheCheckedDescriptor) {
  auto artefact = open_artefact(record_with(NICHE_TEST_LIBRARY_A));
  ASSERT_TRUE(artefact.ok()) << artefact.status().to_string();
  EXPECT_EQ(answer_of(::dlopen(artefact->load_path().c_str(), RTLD_NOW | RTLD_LOCAL)), 1);
}

TEST(Artefact, ADescriptorNumberUsedAgainLoadsTheNewCode) {
  int first_fd;
  {
    auto a = open_artefact(record_with(NICHE_TEST_LIBRARY_A));
    ASSERT_TRUE(a.ok());
    first_fd = a->fd();
    ASSERT_EQ(answer_of(::dlopen(a->load_path().c_str(), RTLD_NOW | RTLD_LOCAL)), 1);
  }
  auto b = open_artefact(record_with(NICHE_TEST_LIBRARY_B));
  ASSERT_TRUE(b.ok());
  ASSERT_EQ(b->fd(), first_fd) << "the test needs the number to come back";
  EXPECT_EQ(answer_of(::dlopen(b->load_path().c_str(), RTLD_NOW | RTLD_LOCAL)), 2);
}

TEST(Artefact, CannotBeChangedAfterTheCheck) {
  auto artefact = open_artefact(record_with(NICHE_TEST_LIBRARY_A));
  ASSERT_TRUE(artefact.ok());
  EXPECT_LT(::pwrite(artefact->fd(), "x", 1, 0), 0);
  EXPECT_NE(::ftruncate(artefact->fd(), 0), 0);
}

TEST(Artefact, BytesThatAreNotTheRecordsAreRefused) {
  KernelRecord r = record_with(NICHE_TEST_LIBRARY_A);
  r.artefact[100] ^= 1;
  auto artefact = open_artefact(r);
  ASSERT_FALSE(artefact.ok());
  EXPECT_EQ(artefact.status().code(), dispatch::Code::kCorrupt);
  EXPECT_NE(artefact.status().message().find(r.name), std::string::npos);
}

}  // namespace
}  // namespace niche::kernels_cache
