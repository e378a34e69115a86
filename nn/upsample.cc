#include "weft/nn/upsample.h"

#include "weft/nn/repr.h"
#include "weft/tensor/creation.h"

namespace weft::nn {

Upsample::Upsample(const InterpolateOptions& options) : options_(options) {
  std::string text;
  const auto one_or_all = [&](const char* name, const auto& numbers) {
    if (numbers.begin() == numbers.end()) return;
    std::string list;
    for (const auto n : numbers) {
      list += (list.empty() ? "" : ", ");
      if constexpr (std::is_same_v<decltype(n), const double>) {
        list += detail::repr(n);
      } else {
        list += std::to_string(n);
      }
    }
    const bool one = std::next(numbers.begin()) == numbers.end();
    text += std::string(name) + "=" + (one ? list : "(" + list + ")");
  };
  one_or_all("size", options.size);
  one_or_all("scale_factor", options.scale_factor);
  set_description(text + ", mode='" + options.mode + "'");
}

}  // namespace weft::nn
