// Visits the tensors in arguments and results, however they are nested: for modules, the tape, the
// loader and the engines of parallel training.
//
//   for_each_tensor(batch, [](const Tensor& x) { ... });
//   auto there = map_tensors(batch, [&](const Tensor& x) { return x.to(device); });
//
// It visits, nested in any way: Tensor and types derived from it; std::vector, array, span,
// optional, pair, tuple and C arrays; the values of std::map and std::unordered_map in the order of
// their keys; and structs that name their members with tensors in them, in any order:
//
//   struct Batch {
//     Tensor x;
//     std::vector<Tensor> labels;
//     std::string file;  // no tensor in it, so it need not be named
//     auto tensors() { return std::tie(x, labels); }
//   };
//
// Anything else counts as a leaf without tensors and is passed on as it is. For a class without
// tensors() that would be a guess, so walkable<T> is false: code that must not miss a tensor
// (scatter and gather, the search for unused parameters, a pipeline's stages) calls check_walkable
// first.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft {

namespace detail {

template <class... Ts>
struct TypeList {};

/// The parts of a type. `Types`: the types of the parts, or void if they are not known. each(value,
/// f) calls f(part) for every part of a value, const or not.
template <class T>
struct PartsOf {
  using Types = void;
};

template <class T>
struct PartsOfRange {
  using Types = TypeList<T>;
  template <class Value, class F>
  static void each(Value& value, F&& f) {
    for (auto& part : value) f(part);
  }
};
template <class T, class A>
struct PartsOf<std::vector<T, A>> : PartsOfRange<T> {};
template <class T, std::size_t N>
struct PartsOf<std::array<T, N>> : PartsOfRange<T> {};
template <class T, std::size_t N>
struct PartsOf<std::span<T, N>> : PartsOfRange<T> {};
template <class T, std::size_t N>
struct PartsOf<T[N]> : PartsOfRange<T> {};

template <class T>
struct PartsOf<std::optional<T>> {
  using Types = TypeList<T>;
  template <class Value, class F>
  static void each(Value& value, F&& f) {
    if (value) f(*value);
  }
};

template <class K, class V, class... Rest>
struct PartsOf<std::map<K, V, Rest...>> {
  using Types = TypeList<K, V>;
  template <class Value, class F>
  static void each(Value& value, F&& f) {
    for (auto& [key, part] : value) f(part);
  }
};
template <class K, class V, class... Rest>
struct PartsOf<std::unordered_map<K, V, Rest...>> {
  using Types = TypeList<K, V>;
  template <class Value, class F>
  static void each(Value& value, F&& f) {
    std::map<K, decltype(&value.begin()->second)> in_order;
    for (auto& [key, part] : value) in_order.emplace(key, &part);
    for (const auto& [key, part] : in_order) f(*part);
  }
};

template <class... Ts>
struct PartsOfTuple {
  using Types = TypeList<Ts...>;
  template <class Value, class F>
  static void each(Value& value, F&& f) {
    std::apply([&](auto&... parts) { (f(parts), ...); }, value);
  }
};
template <class A, class B>
struct PartsOf<std::pair<A, B>> : PartsOfTuple<A, B> {};
template <class... Ts>
struct PartsOf<std::tuple<Ts...>> : PartsOfTuple<Ts...> {};

template <class T>
struct TieOf {
  static constexpr bool is_tie = false;
};
template <class... Ts>
struct TieOf<std::tuple<Ts&...>> {
  static constexpr bool is_tie = true;
  using Types = TypeList<Ts...>;
};

/// A struct with tensors() that returns a std::tie; other functions of that name do not count.
template <class T>
concept Described = requires(T& value) {
  value.tensors();
  requires TieOf<decltype(value.tensors())>::is_tie;
};
template <Described T>
struct PartsOf<T> {
  using Types = typename TieOf<decltype(std::declval<T&>().tensors())>::Types;
  template <class Value, class F>
  static void each(Value& value, F&& f) {
    const auto visit = [&](auto&... parts) {
      if constexpr (std::is_const_v<Value>) {
        (f(std::as_const(parts)), ...);
      } else {
        (f(parts), ...);
      }
    };
    // tensors() only names members, so calling it for a const value is safe.
    std::apply(visit, const_cast<T&>(value).tensors());
  }
};

template <class T>
inline constexpr bool is_string = false;
template <class... Ts>
inline constexpr bool is_string<std::basic_string<Ts...>> = true;
template <class T>
inline constexpr bool is_reference_wrapper = false;
template <class T>
inline constexpr bool is_reference_wrapper<std::reference_wrapper<T>> = true;

/// Types that certainly contain no tensor: a Tensor is not trivially copyable, so a trivially
/// copyable type contains none. Pointers and references may lead to one.
template <class T>
constexpr bool is_plain() {
  if constexpr (std::is_pointer_v<T>) {
    using Target = std::remove_pointer_t<T>;
    return std::is_arithmetic_v<Target> || std::is_function_v<Target>;
  } else {
    return is_string<T> || (std::is_trivially_copyable_v<T> && !is_reference_wrapper<T>);
  }
}

template <class... Ts>
struct FirstType : std::type_identity<void> {};
template <class T, class... Ts>
struct FirstType<T, Ts...>
    : std::conditional_t<std::is_void_v<T>, FirstType<Ts...>, std::type_identity<T>> {};

// Below, Seen are the types that contain T: a struct may contain others of its own type.

template <class T, class... Seen>
constexpr bool any_tensor() {
  using Types = typename PartsOf<T>::Types;
  if constexpr (std::is_base_of_v<Tensor, T>) {
    return true;
  } else if constexpr (std::is_void_v<Types> || (std::is_same_v<T, Seen> || ...)) {
    return false;
  } else {
    return []<class... Ts>(TypeList<Ts...>) {
      return (any_tensor<std::remove_cvref_t<Ts>, T, Seen...>() || ...);
    }(Types());
  }
}

/// The first part of T that may contain hidden tensors, or void.
template <class T, class... Seen>
constexpr auto unknown_part() {
  using Types = typename PartsOf<T>::Types;
  if constexpr (std::is_base_of_v<Tensor, T> || (std::is_same_v<T, Seen> || ...)) {
    return std::type_identity<void>();
  } else if constexpr (std::is_void_v<Types>) {
    return std::type_identity<std::conditional_t<is_plain<T>(), void, T>>();
  } else {
    return []<class... Ts>(TypeList<Ts...>) {
      return std::type_identity<typename FirstType<
          typename decltype(unknown_part<std::remove_cvref_t<Ts>, T, Seen...>())::type...>::type>();
    }(Types());
  }
}

template <class T>
inline constexpr bool is_span = false;
template <class T, std::size_t N>
inline constexpr bool is_span<std::span<T, N>> = true;

/// Whether a copy of T has its own tensors; a copy of a span or a std::tie refers to the same ones.
template <class T, class... Seen>
constexpr bool owns_tensors() {
  using U = std::remove_cv_t<T>;
  if constexpr (!any_tensor<std::remove_cvref_t<T>>() || (std::is_same_v<U, Seen> || ...)) {
    return true;
  } else if constexpr (std::is_reference_v<T> || is_span<U>) {
    return false;
  } else if constexpr (std::is_base_of_v<Tensor, U>) {
    return true;
  } else {
    return []<class... Ts>(TypeList<Ts...>) {
      return (owns_tensors<Ts, U, Seen...>() && ...);
    }(typename PartsOf<U>::Types());
  }
}

/// "Conv2d" from "... [with T = weft::nn::Conv2d; ...]" (gcc) or "... [T = weft::nn::Conv2d]"
/// (clang).
std::string short_type_name(std::string_view pretty_function);

/// The name of T without its namespaces and template arguments.
template <class T>
std::string type_name() {
  return short_type_name(__PRETTY_FUNCTION__);
}

[[noreturn]] void throw_unknown_type(const char* op, const std::string& type);

}  // namespace detail

/// Whether a T has room for tensors. (It may have none at present: a vector without elements, an
/// undefined Tensor.)
template <class T>
inline constexpr bool holds_tensors = detail::any_tensor<std::remove_cvref_t<T>>();

/// Whether all parts of T are known: tensors, the types visited above, and types that certainly
/// hold no tensor: numbers, enumerations, strings and other trivially copyable types. Classes
/// without tensors() and pointers are not known.
template <class T>
inline constexpr bool walkable =
    std::is_void_v<typename decltype(detail::unknown_part<std::remove_cvref_t<T>>())::type>;

/// Throws InvalidArgument naming `op`, the first unknown type among the parts of the Ts, and what
/// to do about it. Costs nothing if all are walkable.
template <class... Ts>
void check_walkable([[maybe_unused]] const char* op) {
  using Unknown = typename detail::FirstType<
      typename decltype(detail::unknown_part<std::remove_cvref_t<Ts>>())::type...>::type;
  if constexpr (!std::is_void_v<Unknown>) {
    detail::throw_unknown_type(op, detail::type_name<Unknown>());
  }
}

/// Calls f(tensor) for every tensor in `value`, including undefined ones, always in the same order:
/// with Tensor& if value may be changed, with const Tensor& if it is const.
template <class T, class F>
void for_each_tensor(T&& value, F&& f) {
  using Value = std::remove_reference_t<T>;
  using U = std::remove_cv_t<Value>;
  if constexpr (std::is_base_of_v<Tensor, U>) {
    f(static_cast<std::conditional_t<std::is_const_v<Value>, const Tensor&, Tensor&>>(value));
  } else if constexpr (holds_tensors<U>) {
    detail::PartsOf<U>::each(value, [&f](auto& part) { for_each_tensor(part, f); });
  }
}

/// The same structure with f(tensor) in place of each tensor, in the order of for_each_tensor. f
/// takes a const Tensor& and returns a Tensor. The other parts are copied, or moved from an rvalue.
/// A std::span or C array, which does not own its tensors, comes back as a std::vector; one inside
/// another structure, or a std::tie, does not compile.
template <class T, class F>
auto map_tensors(T&& value, F&& f) {
  using U = std::remove_cvref_t<T>;
  if constexpr (detail::is_span<U> || std::is_array_v<U>) {
    using Element = std::remove_cvref_t<decltype(*std::begin(value))>;
    return map_tensors(std::vector<Element>(std::begin(value), std::end(value)), f);
  } else {
    static_assert(detail::owns_tensors<U>(), "the value refers to tensors: copy it first");
    U result(std::forward<T>(value));
    for_each_tensor(result, [&f](Tensor& x) { x = f(std::as_const(x)); });
    return result;
  }
}

}  // namespace weft
