#include "evolve/toolchain/scratch_dir.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/evolve/temp_dir.h"

namespace niche::evolve {
namespace {

TEST(ScratchDir, GoesWithItsOwnerAndAllThatIsInIt) {
  TempDir parent;
  std::string path;
  {
    auto d = ScratchDir::make(parent.path());
    ASSERT_TRUE(d.ok()) << d.status().to_string();
    path = d->path();
    std::ofstream(path + "/file") << "x";
    ScratchDir moved = std::move(*d);
    EXPECT_TRUE(std::filesystem::exists(moved.path() + "/file"));
    EXPECT_EQ(ScratchDir::sweep(parent.path()), 0);  // it is held
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(ScratchDir, WhatAKilledOwnerLeftIsSwept) {
  TempDir parent;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto d = ScratchDir::make(parent.path());
    const bool ok = d.ok() && std::filesystem::create_directory(d->path() + "/sub");
    (void)!::write(ready[1], ok ? "y" : "n", 1);
    for (;;) ::pause();
  }
  char answer = 0;
  ASSERT_EQ(::read(ready[0], &answer, 1), 1);
  ASSERT_EQ(answer, 'y');
  EXPECT_EQ(ScratchDir::sweep(parent.path()), 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(ScratchDir::sweep(parent.path()), 1);
  EXPECT_TRUE(std::filesystem::is_empty(parent.path()));
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(ScratchDir, OthersDirectoriesAreLeftAlone) {
  TempDir parent;
  std::filesystem::create_directory(parent.path() + "/niche_other");
  std::ofstream(parent.path() + "/niche_scratch_file") << "a file, not a directory";
  std::filesystem::create_directory_symlink(parent.path() + "/niche_other",
                                            parent.path() + "/niche_scratch_link");
  EXPECT_EQ(ScratchDir::sweep(parent.path()), 0);
  EXPECT_TRUE(std::filesystem::exists(parent.path() + "/niche_other"));
}

TEST(ScratchDir, AParentThatIsNotThereIsNamed) {
  auto d = ScratchDir::make("/nonexistent/niche");
  ASSERT_FALSE(d.ok());
  EXPECT_NE(d.status().message().find("/nonexistent/niche"), std::string::npos) << d.status().message();
}

}  // namespace
}  // namespace niche::evolve
