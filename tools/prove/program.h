// The two runs of `./weft prove`: a program as several ranks, and in one process.
#pragma once

#include <string>
#include <vector>

#include "weft/train/proof/verdict.h"

namespace weft::prove {

/// The program has refused its options, with status 2 and a message of its own.
struct ProgramRefused {};

/// SIGINT, SIGTERM or SIGHUP has come. It is passed on to the run, and thrown when the run has
/// ended: then no process is left, and no folder.
struct Stopped {
  int signal;
};

/// Both runs of a program, and where they write. All functions that run it throw ProgramRefused,
/// Stopped, Library for a run that fails, Io, and InvalidArgument for a program that `./weft prove`
/// cannot run.
class Program : public train::proof::Sides {
 public:
  /// words: the program and its options, to which those are added that both runs need. launcher:
  /// the path of weftrun. From here on the process catches these signals,
  /// except those that are ignored, as nohup does.
  Program(std::vector<std::string> words, int ranks, std::string launcher, std::string folder);

  std::string name() const override;
  std::string text() const override;
  bool has_f64() const override { return has("--dtype"); }
  std::string path(const std::string& name) const override { return folder_ + "/" + name; }
  std::vector<train::proof::Record> run_side(const Run& run, bool alone) const override;

 private:
  void add(const std::string& option, const std::string& value);
  /// Whether a line of the help begins with the option, or with its other names: "-h, --help".
  bool has(const std::string& option) const;
  /// Whether the ranks are devices of one process.
  bool uses_devices() const { return !has("--local-rank") && has("--devices"); }
  int execute(const std::vector<std::string>& words, const std::string& name) const;
  std::string read(const std::string& name) const;

  const int ranks_;
  const std::string launcher_;
  std::vector<std::string> words_;
  const std::string folder_;
  std::string help_;
};

}  // namespace weft::prove
