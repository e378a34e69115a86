#include "weft/tools/simulate/replay/setting.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <set>
#include <system_error>

#include "weft/core/base/error.h"
#include "weft/parallel/schedule.h"
#include "weft/tools/simulate/cost_terms.h"

namespace weft::simulator {
namespace {

const char* words_of(Engine engine) {
  switch (engine) {
    case Engine::ddp:
      return "cap=5, cap=inf, cap=default, order=reversed, order=given, ranks=8, bf16";
    case Engine::fsdp: return "reshard=true, reshard=false, ranks=8, bf16";
    default: return "schedule=1f1b, schedule=gpipe, schedule=zb-h1, micro-batches=16";
  }
}

// Reads one setting, word by word.
class SettingReader {
 public:
  SettingReader(std::string_view text, int ranks, Engine engine)
      : ranks_(ranks), engine_(engine), setting_{.text = std::string(text)} {}

  Setting read() {
    const std::string text = setting_.text;
    WEFT_CHECK(!text.empty(), InvalidArgument, kOp, "got an empty setting");
    for (std::string_view rest = text; !rest.empty();) {
      word_ = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(word_.size() + 1, rest.size()));
      name_ = word_.substr(0, word_.find('='));
      value_ = word_.substr(std::min(name_.size() + 1, word_.size()));
      WEFT_CHECK(names_.insert(name_).second, InvalidArgument, kOp, "got the setting '",
                 setting_.text, "' with '", name_, "' twice");
      if (word_ != "recorded" && !read_common() && !read_own()) refuse();
    }
    const int size = setting_.ranks > 0 ? setting_.ranks : ranks_;
    WEFT_CHECK(setting_.slow_rank < size, InvalidArgument, kOp, "got the setting '", setting_.text,
               "' with the slow rank ", setting_.slow_rank, ", expected one of 0 to ", size - 1);
    if (const auto& link = setting_.thin_link) {
      WEFT_CHECK(std::max(link->a, link->b) < size, InvalidArgument, kOp, "got the setting '",
                 setting_.text, "' with a link between ranks ", link->a, " and ", link->b,
                 ", expected two of 0 to ", size - 1);
    }
    return setting_;
  }

 private:
  [[noreturn]] void refuse() const {
    WEFT_THROW(InvalidArgument, kOp, "got the setting '", word_, "', expected words as ",
               words_of(engine_),
               ", link=0-1:100MB/s, slow=1:20ms, slow=1:1.5x, latency=50us, bandwidth=1GB/s for ",
               to_string(engine_), ", with commas between; ranks are 0 to ", ranks_ - 1);
  }

  // Takes a number from the front of the value. Refuses negative numbers, inf and nan.
  template <class T>
  T take(T number) {
    const char* const end = value_.data() + value_.size();
    const auto [stop, error] = std::from_chars(value_.data(), end, number);
    if (error != std::errc() || !std::isfinite(static_cast<double>(number)) || number < 0) refuse();
    value_ = {stop, end};
    return number;
  }
  // The value as a number from `least` to `most`.
  int whole(int least, int most) {
    const int number = take(0);
    if (!value_.empty() || number < least || number > most) refuse();
    return number;
  }
  double seconds() {
    const double number = take(0.0);
    if (value_ != "us" && value_ != "ms" && value_ != "s") refuse();
    return number * (value_ == "us" ? 1e-6 : value_ == "ms" ? 1e-3 : 1);
  }
  comm::ThinLink link(const std::string& text) const {
    try {
      return comm::ThinLink::parse(text);
    } catch (const Error&) {
      refuse();
    }
  }
  bool is_one_of(std::initializer_list<std::string_view> values) const {
    return std::ranges::find(values, value_) != values.end();
  }

  // Reads the word if all engines know it; returns whether they do.
  bool read_common() {
    if (name_ == "link") {
      setting_.thin_link = link(std::string(value_));
    } else if (name_ == "slow") {
      setting_.slow_rank = take(0);
      if (setting_.slow_rank >= ranks_ || !value_.starts_with(':')) refuse();
      value_.remove_prefix(1);
      if (value_.ends_with('x')) {
        setting_.slow_times = take(0.0);
        if (value_ != "x") refuse();
      } else {
        setting_.slow_by = seconds();
      }
    } else if (name_ == "latency") {
      setting_.latency = seconds();
    } else if (name_ == "bandwidth") {
      setting_.bytes_per_second = link("0-1:" + std::string(value_)).bytes_per_second;
    } else {
      return false;
    }
    return true;
  }

  bool read_own() {
    if (engine_ == Engine::pipeline) return read_of_pipeline();
    if (word_ == "bf16") {
      setting_.bf16 = true;
    } else if (name_ == "ranks") {
      setting_.ranks = whole(2, 1 << 20);
    } else if (engine_ == Engine::fsdp) {
      if (name_ != "reshard" || !is_one_of({"true", "false"})) return false;
      setting_.reshard = value_ == "true";
    } else {
      return read_of_ddp();
    }
    return true;
  }

  bool read_of_ddp() {
    if (word_ == "cap=default") {
      setting_.default_caps = true;
    } else if (word_ == "cap=inf") {
      setting_.cap_mib = std::numeric_limits<double>::infinity();
    } else if (name_ == "cap") {
      setting_.cap_mib = take(0.0);
      if (!value_.empty() || !(*setting_.cap_mib > 0)) refuse();
    } else if (name_ == "order" && is_one_of({"arrival", "reversed", "given"})) {
      using enum parallel::BucketOrder;
      setting_.order = value_ == "arrival" ? arrival : value_ == "reversed" ? reversed : given;
      setting_.default_caps = true;
    } else {
      return false;
    }
    return true;
  }

  bool read_of_pipeline() {
    if (name_ == "schedule") {
      setting_.schedule = value_;
      return std::ranges::find(parallel::schedule_names(), setting_.schedule) !=
             parallel::schedule_names().end();
    }
    if (name_ != "micro-batches") return false;
    setting_.micro_batches = whole(1, parallel::kMostMicroBatches);
    return true;
  }

  const int ranks_;
  const Engine engine_;
  Setting setting_;
  std::string_view word_, name_, value_;
  std::set<std::string_view> names_;  // that were read
};

}  // namespace

const char* to_string(Engine engine) {
  switch (engine) {
    case Engine::ddp: return "DDP";
    case Engine::fsdp: return "FSDP";
    default: return "a pipeline";
  }
}

bool Setting::is_extrapolated() const {
  return ranks > 0 || has_own_links() || bf16 || micro_batches > 0;
}

Setting parse_setting(std::string_view text, int ranks, Engine engine) {
  return SettingReader(text, ranks, engine).read();
}

}  // namespace weft::simulator
