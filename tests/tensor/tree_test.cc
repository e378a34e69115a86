// The walker of the tensors in arguments and results.
#include "weft/tensor/tree.h"
#include "weft/tensor/elementwise.h"

#include <gtest/gtest.h>

#include <any>
#include <functional>
#include <memory>
#include <string>

#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"

namespace weft {
namespace {

Tensor number(double value) { return scalar(value, DType::f64); }

template <class T>
std::vector<double> walked(T&& value) {
  std::vector<double> values;
  for_each_tensor(value, [&](const Tensor& x) {
    values.push_back(x.defined() ? x.template item<double>() : -1);
  });
  return values;
}

Tensor plus_ten(const Tensor& x) { return x.defined() ? raw::add(x, 10) : x; }

using List = std::vector<double>;

struct Pair {
  Tensor second, first;
  std::string name;
  auto tensors() { return std::tie(first, second); }
};

// A struct that contains others of its own type, nested.
struct Branch {
  Tensor x;
  std::vector<Branch> below;
  auto tensors() { return std::tie(x, below); }
};

struct Labelled : Tensor {
  explicit Labelled(Tensor x, int tag) : Tensor(std::move(x)), label(tag) {}
  int label;
};

struct Settings {
  std::string text;
  std::vector<double> values;
  auto tensors() { return std::tie(); }
};

struct Unknown {
  std::shared_ptr<Tensor> hidden;
};

struct NotTheHook {
  std::vector<Tensor> list;
  std::vector<Tensor> tensors() const { return list; }
};

TEST(TreeTest, WalksEveryContainerInOrder) {
  EXPECT_EQ(walked(number(1)), (List{1}));
  EXPECT_EQ(walked(Tensor()), (List{-1}));
  EXPECT_EQ(walked(std::vector{number(1), Tensor(), number(2)}), (List{1, -1, 2}));
  EXPECT_EQ(walked(std::array{number(1), number(2)}), (List{1, 2}));
  const Tensor plain[] = {number(3), number(4)};
  EXPECT_EQ(walked(plain), (List{3, 4}));
  EXPECT_EQ(walked(std::span<const Tensor>(plain)), (List{3, 4}));
  EXPECT_EQ(walked(std::pair{number(1), 7}), (List{1}));
  EXPECT_EQ(walked(std::tuple{5, number(1), std::string("x"), number(2)}), (List{1, 2}));
  EXPECT_EQ(walked(std::optional<Tensor>()), (List{}));
  EXPECT_EQ(walked(std::optional(number(1))), (List{1}));
  EXPECT_EQ(walked(std::map<std::string, Tensor>{{"b", number(2)}, {"a", number(1)}}),
            (List{1, 2}));
  EXPECT_EQ(walked(Labelled(number(1), 2)), (List{1}));
  EXPECT_EQ(walked(Pair{number(2), number(1), "name"}), (List{1, 2}));
  EXPECT_EQ(walked(3), (List{}));
  EXPECT_EQ(walked(std::vector<bool>{true}), (List{}));
  EXPECT_EQ(walked(NotTheHook{{number(1)}}), (List{}));
  const Tensor a = number(1), b = number(2);
  EXPECT_EQ(walked(std::tie(a, b)), (List{1, 2}));
}

// The order must not depend on a hash, which differs between libraries and with the history of the
// map.
TEST(TreeTest, UnorderedMapsGoByKey) {
  std::unordered_map<int, Tensor> map;
  List expected;
  for (int i = 0; i < 100; ++i) map[(i * 37) % 100] = number((i * 37) % 100);
  for (int i = 0; i < 100; ++i) expected.push_back(i);
  EXPECT_EQ(walked(map), expected);
}

TEST(TreeTest, WalksWhatIsNested) {
  const std::tuple<std::vector<std::pair<int, Pair>>, std::optional<std::array<Tensor, 2>>,
                   std::map<int, std::vector<Tensor>>>
      value{{{7, Pair{number(2), number(1), ""}}, {8, Pair{number(4), number(3), ""}}},
            {{number(5), number(6)}},
            {{2, {number(8)}}, {1, {number(7)}}}};
  EXPECT_EQ(walked(value), (List{1, 2, 3, 4, 5, 6, 7, 8}));
  const Branch tree{number(1), {{number(2), {{number(3), {}}}}, {number(4), {}}}};
  EXPECT_EQ(walked(tree), (List{1, 2, 3, 4}));
}

TEST(TreeTest, GivesTheTensorsThemselves) {
  std::tuple<Tensor, std::vector<Tensor>, Pair> value{
      number(1), {number(2)}, {number(4), number(3), ""}};
  std::vector<const Tensor*> seen;
  for_each_tensor(value, [&](Tensor& x) {
    seen.push_back(&x);
    x = plus_ten(x);
  });
  EXPECT_EQ(seen,
            (std::vector<const Tensor*>{&std::get<0>(value), &std::get<1>(value)[0],
                                        &std::get<2>(value).first, &std::get<2>(value).second}));
  EXPECT_EQ(walked(value), (List{11, 12, 13, 14}));
  // Tensors in a const value are const.
  for_each_tensor(std::as_const(value),
                  [](auto& x) { static_assert(std::is_same_v<decltype(x), const Tensor&>); });
}

TEST(TreeTest, MapKeepsTheStructureAndEverythingElse) {
  const std::tuple<int, Pair, std::map<std::string, std::optional<Tensor>>, Labelled> value{
      3, {number(2), number(1), "name"}, {{"a", number(3)}, {"b", {}}}, Labelled(number(4), 9)};
  const auto mapped = map_tensors(value, plus_ten);
  static_assert(std::is_same_v<decltype(mapped), decltype(value)>);
  EXPECT_EQ(walked(mapped), (List{11, 12, 13, 14}));
  EXPECT_EQ(std::get<0>(mapped), 3);
  EXPECT_EQ(std::get<1>(mapped).name, "name");
  EXPECT_FALSE(std::get<2>(mapped).at("b"));
  EXPECT_EQ(std::get<3>(mapped).label, 9);
  EXPECT_EQ(walked(value), (List{1, 2, 3, 4}));  // not changed

  EXPECT_EQ(walked(map_tensors(Branch{number(1), {{number(2), {}}}}, plus_ten)), (List{11, 12}));
  EXPECT_EQ(map_tensors(std::string("as it is"), plus_ten), "as it is");
}

TEST(TreeTest, MapMovesWhatIsGivenUp) {
  std::pair<std::unique_ptr<int>, Tensor> value{std::make_unique<int>(5), number(1)};
  const auto mapped = map_tensors(std::move(value), plus_ten);
  EXPECT_EQ(*mapped.first, 5);
  EXPECT_EQ(walked(mapped), (List{11}));
}

// Writing through a view would change the caller's tensors.
TEST(TreeTest, MapOfAViewOwnsItsTensors) {
  Tensor plain[] = {number(1), number(2)};
  const std::vector<Tensor> mapped = map_tensors(std::span<Tensor>(plain), plus_ten);
  EXPECT_EQ(walked(mapped), (List{11, 12}));
  EXPECT_EQ(walked(map_tensors(plain, plus_ten)), (List{11, 12}));
  EXPECT_EQ(walked(plain), (List{1, 2}));
  static_assert(!detail::owns_tensors<std::pair<int, std::span<Tensor>>>());
  static_assert(!detail::owns_tensors<std::tuple<Tensor&>>());
  static_assert(detail::owns_tensors<std::tuple<Branch, Pair, std::vector<Labelled>>>());
}

TEST(TreeTest, KnowsWhatHoldsTensors) {
  static_assert(holds_tensors<Tensor> && holds_tensors<const Labelled&>);
  static_assert(holds_tensors<std::vector<std::map<int, std::pair<int, Tensor>>>>);
  static_assert(holds_tensors<Branch> && holds_tensors<std::optional<Pair>>);
  static_assert(!holds_tensors<int> && !holds_tensors<std::vector<std::string>>);
  static_assert(!holds_tensors<Settings> && !holds_tensors<Unknown>);

  static_assert(walkable<Tensor> && walkable<Branch&> && walkable<Settings>);
  static_assert(walkable<std::tuple<int, DType, Device, Shape, const char*, std::string_view>>);
  static_assert(walkable<std::map<std::string, std::vector<Pair>>> && walkable<std::tuple<>>);
  static_assert(!walkable<Unknown> && !walkable<NotTheHook> && !walkable<std::any>);
  static_assert(!walkable<Tensor*> && !walkable<std::reference_wrapper<Tensor>>);
  static_assert(!walkable<std::shared_ptr<int>>);
  // If a part is not known, the whole is not known.
  static_assert(holds_tensors<std::pair<Tensor, Unknown>> && !walkable<std::pair<Tensor, Unknown>>);
  static_assert(!walkable<std::function<Tensor()>>);
}

TEST(TreeTest, SaysHowToTeachIt) {
  check_walkable<Tensor, int, std::vector<Pair>>("scatter");
  EXPECT_WEFT_ERROR((check_walkable<Tensor, std::vector<std::pair<int, Unknown>>>("scatter")),
                    InvalidArgument,
                    "[scatter] a value of type Unknown may hold tensors that nothing can find; "
                    "give the struct a member `auto tensors() { return std::tie(x, y); }`");
}

}  // namespace
}  // namespace weft
