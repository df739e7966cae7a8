#include "kernels_cache/record_codec.h"

#include "test_support.h"

namespace niche::kernels_cache {
namespace {

const EnvironmentTag kTag = environment_tag(test_environment().canonical_text());

TEST(RecordCodec, GivesBackEveryField) {
  const KernelRecord in = test_record(3);
  auto bytes = encode_entry(in, kTag);
  ASSERT_TRUE(bytes.ok()) << bytes.status().to_string();
  Miss miss;
  const auto out = decode_entry(*bytes, kTag, "entry", &miss);
  ASSERT_TRUE(out) << miss.text;
  expect_equal(in, *out);
}

KernelRecord cuda_record() {
  KernelRecord r = test_record(4);
  r.kind = dispatch::KernelKind::kCuda;
  r.cuda_plan.phases = {{"run", {{0, 4}, {2, 128}}, 256, 100 << 10, 2, 4, false},
                        {"add_up", {}, 1024, 0, 0, 1, true}};
  r.cuda_plan.workspace_bytes = r.plan.workspace_bytes;
  r.cuda_plan.sm_count = 132;
  return r;
}

TEST(RecordCodec, GivesBackTheLaunchPlanOfACudaKernel) {
  const KernelRecord in = cuda_record();
  auto bytes = encode_entry(in, kTag);
  ASSERT_TRUE(bytes.ok()) << bytes.status().to_string();
  Miss miss;
  const auto out = decode_entry(*bytes, kTag, "entry", &miss);
  ASSERT_TRUE(out) << miss.text;
  expect_equal(in, *out);
  const auto &a = in.cuda_plan, &b = out->cuda_plan;
  EXPECT_EQ(a.workspace_bytes, b.workspace_bytes);
  EXPECT_EQ(a.sm_count, b.sm_count);
  ASSERT_EQ(a.phases.size(), b.phases.size());
  for (size_t i = 0; i < a.phases.size(); ++i) {
    EXPECT_EQ(a.phases[i].symbol, b.phases[i].symbol);
    EXPECT_EQ(a.phases[i].threads, b.phases[i].threads);
    EXPECT_EQ(a.phases[i].shared_bytes, b.phases[i].shared_bytes);
    EXPECT_EQ(a.phases[i].blocks_per_sm, b.phases[i].blocks_per_sm);
    EXPECT_EQ(a.phases[i].cluster, b.phases[i].cluster);
    EXPECT_EQ(a.phases[i].overlap, b.phases[i].overlap);
    ASSERT_EQ(a.phases[i].factors.size(), b.phases[i].factors.size());
    for (size_t f = 0; f < a.phases[i].factors.size(); ++f) {
      EXPECT_EQ(a.phases[i].factors[f].axis, b.phases[i].factors[f].axis);
      EXPECT_EQ(a.phases[i].factors[f].divisor, b.phases[i].factors[f].divisor);
    }
  }
}

TEST(RecordCodec, RefusesCudaPlansThatNoDriverWouldLaunch) {
  const struct {
    const char* what;
    std::function<void(dispatch::CudaLaunchPlan&)> spoil;
  } cases[] = {
      {"0 phases", [](auto& p) { p.phases.clear(); }},
      {"5 phases", [](auto& p) { p.phases.resize(5, p.phases[0]); }},
      {"symbol", [](auto& p) { p.phases[0].symbol = "a;b"; }},
      {"factor", [](auto& p) { p.phases[0].factors[0].divisor = 0; }},
      {"2048 threads", [](auto& p) { p.phases[0].threads = 2048; }},
      {"-1 bytes shared", [](auto& p) { p.phases[0].shared_bytes = -1; }},
      {"clusters of 32", [](auto& p) { p.phases[0].cluster = 32; }},
      {"workspace_bytes", [](auto& p) { p.workspace_bytes = -1; }},
      {"sm_count", [](auto& p) { p.sm_count = -1; }},
  };
  for (const auto& c : cases) {
    KernelRecord r = cuda_record();
    c.spoil(r.cuda_plan);
    const auto bytes = encode_entry(r, kTag);
    ASSERT_FALSE(bytes.ok()) << c.what;
    EXPECT_EQ(bytes.status().code(), dispatch::Code::kInvalid);
    EXPECT_NE(bytes.status().message().find(c.what), std::string::npos) << bytes.status().to_string();
  }
}

TEST(RecordCodec, RefusesToWriteWhatItWouldNotRead) {
  const struct {
    const char* what;
    std::function<void(KernelRecord&)> spoil;
  } cases[] = {
      {"name", [](KernelRecord& r) { r.name = ""; }},
      {"name", [](KernelRecord& r) { r.name = "a\nb"; }},
      {"definition", [](KernelRecord& r) { r.definition = std::string("a\0b", 3); }},
      {"fallback", [](KernelRecord& r) { r.kind = dispatch::KernelKind::kFallback; }},
      {"variable axes", [](KernelRecord& r) { r.guard.var_count = dispatch::kMaxVarAxes + 1; }},
      {"range 0", [](KernelRecord& r) { r.guard.var[0].multiple_of = 0; }},
      {"alignment", [](KernelRecord& r) { r.guard.alignment_bytes = 24; }},
      {"phases", [](KernelRecord& r) { r.plan.phases.clear(); }},
      {"symbol", [](KernelRecord& r) { r.plan.phases[0].symbol = "a b"; }},
      {"factor", [](KernelRecord& r) { r.plan.phases[0].factors[0].divisor = 0; }},
      {"axis 12", [](KernelRecord& r) { r.plan.phases[0].factors[0].axis = dispatch::kMaxAxes; }},
      {"parallel_min_tasks", [](KernelRecord& r) { r.plan.phases[0].parallel_min_tasks = 0; }},
      {"workspace", [](KernelRecord& r) { r.plan.workspace_bytes = -1; }},
      {"finite", [](KernelRecord& r) { r.kernel_ns = std::numeric_limits<double>::quiet_NaN(); }},
      {"artefact_sha256", [](KernelRecord& r) { r.artefact_sha256 = "xyz"; }},
      {"SHA-256", [](KernelRecord& r) { r.artefact[5] ^= 1; }},
  };
  for (const auto& c : cases) {
    KernelRecord r = test_record(1);
    c.spoil(r);
    auto bytes = encode_entry(r, kTag);
    ASSERT_FALSE(bytes.ok()) << c.what;
    EXPECT_EQ(bytes.status().code(), dispatch::Code::kInvalid);
    EXPECT_NE(bytes.status().message().find(c.what), std::string::npos) << bytes.status().to_string();
  }
}

TEST(RecordCodec, DecodeChecksValuesThatTheVerifierCannotKnow) {
  KernelRecord r = test_record(1);
  r.plan.phases[0].factors[0].axis = 99;  // encode_record does not validate
  const auto decoded = decode_record(encode_record(r));
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.status().code(), dispatch::Code::kCorrupt);
  EXPECT_NE(decoded.status().message().find("axis 99"), std::string::npos);
}

TEST(EntryFile, NamesTheReasonOfEachMiss) {
  const auto good = *encode_entry(test_record(1), kTag);
  const struct {
    MissReason want;
    std::function<void(std::vector<uint8_t>&)> spoil;
  } cases[] = {
      {MissReason::kTruncated, [](auto& b) { b.resize(10); }},
      {MissReason::kTruncated, [](auto& b) { b.pop_back(); }},
      {MissReason::kTruncated, [](auto& b) { b.push_back(0); }},
      {MissReason::kForeign, [](auto& b) { b[0] ^= 1; }},
      {MissReason::kForeign, [](auto& b) { b[8] ^= 1; }},      // kind
      {MissReason::kStale, [](auto& b) { b[12] ^= 1; }},       // version
      {MissReason::kForeign, [](auto& b) { b[33] ^= 1; }},     // environment
      {MissReason::kCorrupt, [](auto& b) { b[23] = 0xff; }},   // a length past the bounds
      {MissReason::kCorrupt, [](auto& b) { b[50] ^= 1; }},     // checksum
      {MissReason::kCorrupt, [](auto& b) { b[120] ^= 1; }},    // payload
      {MissReason::kCorrupt, [](auto& b) { b.back() ^= 1; }},  // artefact
  };
  int i = 0;
  for (const auto& c : cases) {
    auto bytes = good;
    c.spoil(bytes);
    Miss miss;
    EXPECT_FALSE(decode_entry(bytes, kTag, "entry 7", &miss)) << i;
    EXPECT_EQ(miss.reason, c.want) << i << ": " << miss.text;
    EXPECT_NE(miss.text.find("entry 7"), std::string::npos);
    ++i;
  }
}

TEST(KernelId, IsInjectiveInItsParts) {
  EXPECT_NE(kernel_id("a", "bc", ""), kernel_id("ab", "c", ""));
  EXPECT_NE(kernel_id("a", "b", "c"), kernel_id("a", "b", ""));
  const KernelId id = kernel_id(test_record(1));
  EXPECT_EQ(KernelId::from_file_name(id.file_name()), id);
  EXPECT_FALSE(KernelId::from_file_name(id.hex()));
  EXPECT_FALSE(KernelId::from_file_name("../" + id.file_name()));
  EXPECT_FALSE(KernelId::from_hex(std::string(32, 'G')));
}

TEST(Sha256, KnowsTheStandardsVectors) {
  EXPECT_EQ(to_hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(to_hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

}  // namespace
}  // namespace niche::kernels_cache
