#include "runtime/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

namespace niche {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Config, DefaultsAreValid) { EXPECT_TRUE(RuntimeConfig().validate().ok()); }

TEST(Config, EveryFieldIsReadFromJson) {
  RuntimeConfig c;
  const auto s = apply_json(
      R"({"disable": true, "force": "fallback", "cache_dir": "/c", "worker_args": ["worker", "-v"],
          "sessions_max": 3, "session_cpu_share": 0.25, "cache_bytes_max": 5000000000})",
      "test.json", &c);
  ASSERT_TRUE(s.ok()) << s.to_string();
  EXPECT_TRUE(c.disable);
  EXPECT_EQ(c.force, "fallback");
  EXPECT_EQ(c.cache_dir, "/c");
  EXPECT_EQ(c.worker_args, (std::vector<std::string>{"worker", "-v"}));
  EXPECT_EQ(c.sessions_max, 3);
  EXPECT_DOUBLE_EQ(c.session_cpu_share, 0.25);
  EXPECT_EQ(c.cache_bytes_max, 5000000000);
}

TEST(Config, UnknownKeyIsAnErrorThatSuggestsTheNearest) {
  RuntimeConfig c;
  const auto s = apply_json(R"({"cache_dri": "/c"})", "niche.json", &c);
  EXPECT_EQ(s.code(), dispatch::Code::kInvalid);
  EXPECT_THAT(s.message(),
              AllOf(HasSubstr("niche.json"), HasSubstr("'cache_dri'"), HasSubstr("'cache_dir'")));
}

TEST(Config, NonsenseValuesNameKeyAndRange) {
  RuntimeConfig c;
  EXPECT_THAT(apply_json(R"({"sessions_max": 0})", "f", &c).message(),
              AllOf(HasSubstr("'sessions_max' is 0"), HasSubstr("1 and 64")));
  EXPECT_THAT(apply_json(R"({"sessions_max": 1.5})", "f", &c).message(), HasSubstr("takes a int, not 1.5"));
  EXPECT_THAT(apply_json(R"({"sessions_max": 4294967298})", "f", &c).message(), HasSubstr("takes a int"));
  EXPECT_THAT(apply_json(R"({"disable": "maybe"})", "f", &c).message(), HasSubstr("takes a bool"));
  EXPECT_THAT(apply_json(R"({"worker_args": [1]})", "f", &c).message(), HasSubstr("takes a list"));
  EXPECT_THAT(apply_json("[]", "f", &c).message(), HasSubstr("must be a JSON object"));
  EXPECT_EQ(apply_json("{", "f", &c).code(), dispatch::Code::kInvalid);
  c.p99_slack = std::nan("");
  EXPECT_THAT(c.validate().message(), HasSubstr("p99_slack"));
}

TEST(Config, AFailedApplyLeavesTheConfigAlone) {
  RuntimeConfig c;
  EXPECT_FALSE(apply_json(R"({"cache_dir": "/other", "zzz": 1})", "f", &c).ok());
  EXPECT_TRUE(c.cache_dir.empty());
}

TEST(Config, EnvironmentOverridesTheFileItNames) {
  const std::string path = testing::TempDir() + "niche_config_test.json";
  std::ofstream(path) << R"({"sessions_max": 2, "cache_dir": "/from/file"})";
  const std::string file = "NICHE_CONFIG=" + path;
  const char* env[] = {"NICHE_SESSIONS_MAX=5",        "HOME=/root", "NICHE_TEST_X=1", file.c_str(),
                       "NICHE_WORKER_ARGS=worker:-v", nullptr};
  RuntimeConfig c;
  const auto s = apply_environment(env, &c);
  ASSERT_TRUE(s.ok()) << s.to_string();
  EXPECT_EQ(c.sessions_max, 5);
  EXPECT_EQ(c.cache_dir, "/from/file");
  EXPECT_EQ(c.worker_args, (std::vector<std::string>{"worker", "-v"}));
}

TEST(Config, UnknownVariableAndMissingFileAreErrors) {
  RuntimeConfig c;
  const char* unknown[] = {"NICHE_DISABEL=1", nullptr};
  EXPECT_THAT(apply_environment(unknown, &c).message(),
              AllOf(HasSubstr("NICHE_DISABEL"), HasSubstr("'disable'")));
  const char* missing[] = {"NICHE_CONFIG=/no/such/file.json", nullptr};
  EXPECT_EQ(apply_environment(missing, &c).code(), dispatch::Code::kIo);
  const char* nonsense[] = {"NICHE_SESSION_CPU_SHARE=fast", nullptr};
  EXPECT_THAT(apply_environment(nonsense, &c).message(), HasSubstr("takes a number, not 'fast'"));
}

TEST(Config, HttpAddressIsCheckedForItsForm) {
  RuntimeConfig c;
  for (const char* bad : {"9464", ":9464", "127.0.0.1:", "127.0.0.1:port", "127.0.0.1:70000"}) {
    c.http_address = bad;
    EXPECT_THAT(c.validate().message(), HasSubstr("http_address")) << bad;
  }
  c.http_address = "127.0.0.1:0";
  EXPECT_TRUE(c.validate().ok());
}

TEST(Config, FieldTableCoversRangesAndMeanings) {
  for (const ConfigField& f : config_fields()) {
    EXPECT_FALSE(f.meaning.empty()) << f.name;
    // What it is said to be by default is what the variable of that name would set.
    const std::string entry = f.environment + "=" + f.default_value;
    const char* env[] = {entry.c_str(), nullptr};
    RuntimeConfig c;
    EXPECT_TRUE(apply_environment(env, &c).ok()) << entry;
    if (f.name == "cache_bytes_max") {
      EXPECT_EQ(f.environment, "NICHE_CACHE_BYTES_MAX");
      EXPECT_EQ(f.default_value, "4294967296");
      EXPECT_EQ(f.unit, "bytes");
    }
    if (f.type == "int" || f.type == "number") {
      EXPECT_LT(f.lo, f.hi) << f.name;
    }
  }
}

}  // namespace
}  // namespace niche
