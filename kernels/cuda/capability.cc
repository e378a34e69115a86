#include "weft/kernels/cuda/capability.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "weft/core/base/error.h"

namespace weft::cuda {
namespace {

/// "a", "a and b", "a, b and c"
std::string listed(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    text += i == 0 ? "" : i + 1 == words.size() ? " and " : ", ";
    text += words[i];
  }
  return text;
}

/// "GPU 0 of compute capability 7.5"
std::string named(const std::vector<VisibleGpu>& gpus) {
  std::vector<std::string> words;
  for (const VisibleGpu& gpu : gpus) {
    words.push_back(
        detail::concat("GPU ", gpu.number, " of compute capability ", to_string(gpu.capability)));
  }
  return listed(words);
}

}  // namespace

std::string to_string(const Capability& capability) {
  return detail::concat(capability.major, ".", capability.minor);
}

BuiltFor parse_built_for(std::string_view text) {
  BuiltFor built;
  for (std::string_view rest = text; !rest.empty();) {
    std::string_view word = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
    const bool ptx = word.ends_with("+ptx");
    if (ptx) word.remove_suffix(4);
    int number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    WEFT_CHECK(error == std::errc() && end == word.data() + word.size() && number >= 10, Internal,
               "cuda", "'", text, "' is no list of architectures");
    const Capability capability{number / 10, number % 10};
    built.code.push_back(capability);
    if (ptx) built.ptx.push_back(capability);
  }
  return built;
}

std::string to_string(const BuiltFor& built) {
  std::vector<std::string> words;
  for (const Capability& c : built.code) words.push_back(to_string(c));
  if (!built.ptx.empty()) {
    const Capability least = *std::ranges::min_element(built.ptx);
    words.push_back("all from " + to_string(least) + " on");
  }
  return listed(words);
}

bool has_code_for(const Capability& capability, const BuiltFor& built) {
  const auto runs = [&](const Capability& c) {
    return c.major == capability.major && c.minor <= capability.minor;
  };
  const auto compiles = [&](const Capability& c) { return c <= capability; };
  return std::ranges::any_of(built.code, runs) || std::ranges::any_of(built.ptx, compiles);
}

// CUDA 13 has neither a compiler nor libraries for Maxwell, Pascal and Volta; cuDNN has dropped
// them in 9.11.
Capability least_capability(int cuda_version, std::size_t cudnn_version) {
  return cuda_version >= 13000 || cudnn_version >= 91100 ? Capability{7, 5} : Capability{5, 0};
}

std::string why_not_used(const std::vector<VisibleGpu>& gpus, const BuiltFor& built,
                         const Capability& least) {
  std::vector<VisibleGpu> old, other;
  std::set<int> wanted;  // of the machine's GPUs
  for (const VisibleGpu& gpu : gpus) {
    if (gpu.capability < least) {
      old.push_back(gpu);
      continue;
    }
    wanted.insert(gpu.capability.major * 10 + gpu.capability.minor);
    if (!has_code_for(gpu.capability, built)) other.push_back(gpu);
  }
  const auto not_used = [](const std::vector<VisibleGpu>& list) {
    return named(list) + (list.size() == 1 ? " is not used" : " are not used");
  };
  std::string text;
  if (!other.empty()) {
    std::string list;
    for (const int number : wanted) list += (list.empty() ? "" : ",") + std::to_string(number);
    text =
        detail::concat(not_used(other), ": this weft has code for ", to_string(built),
                       "; build it with --arch ", list, ", as in ./weft run EXAMPLE --arch ", list);
  }
  if (!old.empty()) {
    text += detail::concat(text.empty() ? "" : "; ", not_used(old), ": CUDA and cuDNN work from ",
                           to_string(least), " on");
  }
  return text;
}

}  // namespace weft::cuda
