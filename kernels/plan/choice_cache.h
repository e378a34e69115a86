// Choices made by timing, kept on disk from one process to the next.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/core/base/compiler.h"

namespace weft {

/// What won, and how long it took.
struct Choice {
  std::string key;  ///< the problem and its candidates
  std::string name;
  double ms = 0;
  friend bool operator==(const Choice&, const Choice&) = default;
};

/// The choices of one folder, one file per machine. `machine` is a text that names the hardware and
/// the libraries, since timings from other machines are of no use here. Only a program makes one;
/// the library alone never touches the disk:
///   ChoiceCache cache(default_choice_folder());
///   Scoped choices(&ThreadState::choices, &cache);
/// Nothing here ever fails: a file that is missing, damaged, another machine's or cannot be read
/// counts as empty, and what cannot be written is forgotten with the process. Thread-safe, and
/// processes may share the folder. To time anew, delete the files.
///
/// Ranks of one host have the same problems in the same steps. If they timed side by side, they
/// would measure each other and find different winners. So take a turn to time, and look again:
///   if (!cache.find(machine, key)) {
///     const ChoiceCache::Turn turn(&cache, machine);
///     if (!cache.find(machine, key)) cache.add(machine, time());
///   }
class ChoiceCache {
 public:
  /// One at a time among all threads and processes that share the folder. At its beginning the
  /// results of the turn before are known; at its end its own results are written.
  class Turn {
   public:
    /// Waits for the others. After `longest`, and where locking fails, it goes on without the lock:
    /// a process that hangs holds up nobody. Does nothing for a null cache or one turned off.
    Turn(ChoiceCache* cache, const std::string& machine,
         std::chrono::milliseconds longest = std::chrono::minutes(1));
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    explicit Turn(ChoiceCache* cache) : cache_(cache) {}

    ChoiceCache* cache_;
    int lock_ = -1;
  };

  /// An empty folder: choices are remembered by this object alone, nothing is read or written.
  /// Else the folder is made when something is written.
  explicit ChoiceCache(std::string folder);
  /// Saves.
  ~ChoiceCache();
  ChoiceCache(const ChoiceCache&) = delete;
  ChoiceCache& operator=(const ChoiceCache&) = delete;

  std::optional<Choice> find(const std::string& machine, const std::string& key);
  /// Remembers the choice; save() writes it. A text that does not fit the format (no line breaks;
  /// at most kMostChoiceLine bytes in all; no blank in the name) is left out.
  void add(const std::string& machine, Choice choice);
  /// Writes what is new, together with what other processes wrote meanwhile. False when something
  /// could not be written; it stays for the next time.
  bool save() noexcept;

  /// The file of one machine.
  std::string path(const std::string& machine) const;

 private:
  struct File {
    std::map<std::string, Choice, std::less<>> known;
    std::vector<Choice> unsaved;
  };
  File& file(const std::string& machine);
  void read_file(const std::string& machine, File& to) const;
  bool merge(const std::string& machine, File& file) const noexcept;

  const std::string folder_;
  std::mutex mutex_;
  std::map<std::string, File> files_;
};

/// Where programs keep choices: $WEFT_CACHE; else weft under $XDG_CACHE_HOME; else ~/.cache/weft.
/// Empty, which turns them off, when WEFT_CACHE is empty or "off", or when there is no home.
std::string default_choice_folder();

/// FNV-1a of 64 bits, as 16 hexadecimal digits. Texts of equal length that differ in one byte
/// always have different checksums, since each step of FNV-1a is a bijection.
std::string checksum(std::string_view text);

// The file: a first line "weft choices 1 MACHINE", then one line per choice, the oldest first,
//   CHECKSUM KEY NAME MILLISECONDS
// The checksum covers the first line too.
inline constexpr std::size_t kMostChoices = 4096;
inline constexpr std::size_t kMostChoiceLine = 250;
inline constexpr std::size_t kMostChoiceBytes = std::size_t{1} << 20;

/// The choices of a file. Damaged lines are left out; so are all lines when the first line is wrong
/// or the text is larger than any that is written. Of two choices with one key the later counts.
std::vector<Choice> parse_choices(std::string_view text, std::string_view machine);
/// The newest kMostChoices of them as a file.
std::string format_choices(const std::vector<Choice>& choices, std::string_view machine);

}  // namespace weft
