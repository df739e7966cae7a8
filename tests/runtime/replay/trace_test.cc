#include "runtime/cli/replay/trace.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace niche::replay {
namespace {

class TraceFile {
 public:
  explicit TraceFile(const std::string& text) {
    path_ = ::testing::TempDir() + "niche_trace_" + std::to_string(::getpid()) + ".csv";
    std::ofstream(path_) << text;
  }
  ~TraceFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(Trace, ReadsAzureRowsAcrossMidnight) {
  const TraceFile file(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2023-11-16 23:59:59.5000000,374,44\n"
      "2023-11-17 00:00:01.2500000,396,109\r\n");
  const auto rows = read_trace(file.path());
  ASSERT_TRUE(rows.ok()) << rows.status().to_string();
  ASSERT_EQ(rows->size(), 2u);
  EXPECT_EQ((*rows)[0].context_tokens, 374);
  EXPECT_NEAR((*rows)[1].arrival_s, 1.75, 1e-6);
}

TEST(Trace, NamesFileAndLineOfABadField) {
  for (const char* row : {"2023-11-16 18:15:46.68,abc,44", "2023-13-16 18:15:46,1,2", "2023-11-16 18:15:46,1",
                          "2023-11-16 18:15:46,-1,2", "2023-11-16 18:15:45,1,2"}) {
    const TraceFile file(std::string("2023-11-16 18:15:46,1,2\n") + row + "\n");
    const auto rows = read_trace(file.path());
    ASSERT_FALSE(rows.ok()) << row;
    EXPECT_EQ(rows.status().code(), dispatch::Code::kCorrupt);
    EXPECT_NE(rows.status().message().find("line 2"), std::string::npos) << rows.status().message();
  }
}

TEST(Trace, AMissingFileIsAnIoError) {
  EXPECT_EQ(read_trace("/nonexistent/trace.csv").status().code(), dispatch::Code::kIo);
}

TEST(Requests, KeepTheMeanRateAndClampSizes) {
  std::vector<TraceRow> rows;
  for (int i = 0; i <= 100; ++i) rows.push_back({i * i * 0.01, i * 100, i * 20});
  const auto requests = to_requests(rows, {}, 50, 7);
  ASSERT_EQ(requests.size(), rows.size());
  EXPECT_NEAR(requests.back().arrival_s, 100 / 50.0, 1e-9);
  EXPECT_EQ(requests.front().id, 7u);
  EXPECT_EQ(requests.front().batch, 1);
  EXPECT_EQ(requests.front().length, SizeMap{}.length_min);
  EXPECT_EQ(requests.back().batch, SizeMap{}.batch_max);
  EXPECT_EQ(requests.back().length, SizeMap{}.length_max);
  EXPECT_LT(requests[50].arrival_s, requests.back().arrival_s / 2) << "bursts must survive scaling";
}

}  // namespace
}  // namespace niche::replay
