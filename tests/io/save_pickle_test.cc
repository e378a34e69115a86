#include <filesystem>

#include "weft/core/runtime/allocator.h"
#include "weft/io/pickle.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"
#include "weft/tests/io/pickles.h"

namespace weft::io {
namespace {

using testing::Doubles;
using testing::golden_pickle;
using testing::read_file;
using testing::TempFolder;
using testing::values;

using Kind = PickleValue::Kind;

void expect_same(const PickleValue& a, const PickleValue& b) {
  ASSERT_EQ(a.kind(), b.kind());
  switch (a.kind()) {
    case Kind::none: break;
    case Kind::boolean: EXPECT_EQ(a.boolean(), b.boolean()); break;
    case Kind::integer: EXPECT_EQ(a.integer(), b.integer()); break;
    case Kind::real: EXPECT_EQ(a.real(), b.real()); break;
    case Kind::text:
    case Kind::bytes: EXPECT_EQ(a.text(), b.text()); break;
    case Kind::tensor:
      EXPECT_EQ(a.tensor().dtype(), b.tensor().dtype());
      EXPECT_EQ(a.tensor().shape(), b.tensor().shape());
      EXPECT_EQ(values(a), values(b));
      break;
    case Kind::dict:
      ASSERT_EQ(a.entries().size(), b.entries().size());
      for (std::size_t i = 0; i < a.entries().size(); ++i) {
        expect_same(a.entries()[i].first, b.entries()[i].first);
        expect_same(a.entries()[i].second, b.entries()[i].second);
      }
      expect_same(a.attributes(), b.attributes());
      break;
    default:
      ASSERT_EQ(a.items().size(), b.items().size());
      for (std::size_t i = 0; i < a.items().size(); ++i) expect_same(a.items()[i], b.items()[i]);
  }
}

TEST(SavePickle, WritesWhatItReads) {
  TempFolder folder;
  const std::string path = folder.path("a.pth");
  for (const char* name :
       {"dtypes.pth", "values.pth", "views.pth", "state_dict.pth", "checkpoint.pt"}) {
    const PickleValue value = golden_pickle(name);
    save_pickle(path, value);
    for (const bool map : {false, true}) expect_same(load_pickle(path, {.map = map}), value);
    EXPECT_EQ(folder.files(), 1);
  }
}

TEST(SavePickle, WritesTheSameBytesForTheSameValues) {
  TempFolder folder;
  save_pickle(folder.path("a"), golden_pickle("checkpoint.pt"));
  save_pickle(folder.path("b"), load_pickle(folder.path("a")));
  EXPECT_EQ(read_file(folder.path("a")), read_file(folder.path("b")));
}

TEST(SavePickle, WritesSharedStoragesOnce) {
  TempFolder folder;
  const Tensor x = arange(0, 1000, 1, DType::f32);
  save_pickle(folder.path("tied"), PickleValue::dict({{"a", x}, {"b", raw::slice(x, 0, 5, 7)}}));
  const PickleValue tied = load_pickle(folder.path("tied"));
  EXPECT_EQ(tied.at("a").tensor().storage().get(), tied.at("b").tensor().storage().get());
  EXPECT_EQ(values(tied.at("b")), (Doubles{5, 6}));
  // A view by itself leaves the rest of its storage behind.
  save_pickle(folder.path("view"), raw::slice(x, 0, 5, 7));
  EXPECT_LT(std::filesystem::file_size(folder.path("view")), 1000u);
  EXPECT_EQ(values(load_pickle(folder.path("view"))), (Doubles{5, 6}));
}

TEST(SavePickle, WritesBoolsThatShareAStorageWithOtherBytes) {
  TempFolder folder;
  const Tensor bytes = tensor({0, 1, 1, 0, 7}, DType::u8);
  const Tensor a = as_strided(bytes.storage(), DType::boolean, {2}, {1});
  const Tensor b = as_strided(bytes.storage(), DType::boolean, {2}, {1}, 2);
  save_pickle(folder.path("a"), PickleValue::list({a, b}));
  const PickleValue back = load_pickle(folder.path("a"));
  EXPECT_EQ(values(back.items()[0]), (Doubles{0, 1}));
  EXPECT_EQ(values(back.items()[1]), (Doubles{1, 0}));
}

TEST(SavePickle, WritesTensorsOfAnyLayoutAndDevice) {
  TempFolder folder;
  set_host_devices(2);
  {
    const Tensor x = raw::to(raw::reshape(arange(0, 6), {2, 3}), Device("cpu:1"));
    const PickleValue value = PickleValue::list(
        {raw::transpose(x, 0, 1), zeros({0, 3}), scalar(2), raw::expand(scalar(3), {2, 2})});
    save_pickle(folder.path("a"), value);
    expect_same(load_pickle(folder.path("a")), value);
  }
  set_host_devices(1);
}

TEST(SavePickle, WritesSharedContainersOnce) {
  TempFolder folder;
  PickleValue value = 1;
  for (int i = 0; i < 60; ++i) value = PickleValue::list({value, value});
  save_pickle(folder.path("a"), value);
  const PickleValue back = load_pickle(folder.path("a"));
  EXPECT_EQ(back.items()[0].identity(), back.items()[1].identity());
}

TEST(SavePickle, WritesSetsOfTuples) {
  TempFolder folder;
  const PickleValue pair = PickleValue::tuple({1, PickleValue::tuple({"text", ones({1})})});
  const PickleValue set = PickleValue::set({pair, 2, PickleValue::tuple({})});
  save_pickle(folder.path("a"), set);
  expect_same(load_pickle(folder.path("a")), set);
}

TEST(SavePickle, WritesLongContainersInBatches) {
  TempFolder folder;
  const std::string path = folder.path("a");
  for (const int size : {0, 1, 999, 1000, 1001, 1'200'000}) {
    PickleValue::Items items;
    PickleValue::Entries entries;
    for (int i = 0; i < size; ++i) items.emplace_back(i), entries.emplace_back(i, i);
    save_pickle(
        path, PickleValue::list({PickleValue::list(items), PickleValue::dict(std::move(entries))}));
    const PickleValue back = load_pickle(path);
    ASSERT_EQ(back.items()[0].items().size(), items.size());
    ASSERT_EQ(back.items()[1].entries().size(), items.size());
    if (size == 0) continue;
    EXPECT_EQ(back.items()[0].items().back().integer(), size - 1);
    EXPECT_EQ(back.items()[1].entries().back().first.integer(), size - 1);
  }
}

TEST(SavePickle, WritesValuesAsDeepAsItReads) {
  TempFolder folder;
  for (const PickleValue& inner : {PickleValue(7), PickleValue("text"), PickleValue(ones({1}))}) {
    PickleValue deep = inner;
    for (int i = 0; i < 100; ++i) deep = PickleValue::list({deep});
    save_pickle(folder.path("a"), deep);
    expect_same(load_pickle(folder.path("a")), deep);
  }
}

TEST(SavePickle, RefusesToSaveWhatCannotBeLoaded) {
  TempFolder folder;
  const std::string path = folder.path("a");
  EXPECT_WEFT_ERROR(save_pickle(path, "\xff"), InvalidArgument, "a text is not UTF-8");
  PickleValue deep;
  for (int i = 0; i < 101; ++i) deep = PickleValue::list({deep});
  EXPECT_WEFT_ERROR(save_pickle(path, deep), InvalidArgument, "nested deeper than 100");
  EXPECT_WEFT_ERROR(PickleValue::dict({{1, 2}, {1, 3}}), InvalidArgument, "1 is given twice");
  // These keys are equal in Python, which would keep only the last one.
  EXPECT_WEFT_ERROR(PickleValue::dict({{1, 2}, {true, 3}}), InvalidArgument, "True is given twice");
  EXPECT_WEFT_ERROR(PickleValue::dict({{1, 2}, {1.0, 3}}), InvalidArgument, "1 is given twice");
  EXPECT_WEFT_ERROR(PickleValue::dict({{0.0, 2}, {-0.0, 3}}), InvalidArgument, "given twice");
  EXPECT_WEFT_ERROR(PickleValue::ordered_dict({}, 1), InvalidArgument, "attributes are a dict");
  EXPECT_WEFT_ERROR(save_pickle(path, PickleValue::dict({{std::string(4097, 'k'), 1}})),
                    InvalidArgument, "a key of 4097 bytes, over 4096");
  // Python would refuse these.
  const PickleValue list = PickleValue::list({1, 2}), pair = PickleValue::tuple({1, 2});
  for (const PickleValue& one : {list, PickleValue::tuple({pair, list}), PickleValue::dict({})}) {
    EXPECT_WEFT_ERROR(save_pickle(path, PickleValue::set({1, one})), InvalidArgument,
                      "a set with a list, set or dict in it");
  }
  EXPECT_WEFT_ERROR(save_pickle(path, PickleValue::list(PickleValue::Items(5'000'000, 1))),
                    InvalidArgument, "load_pickle() would refuse them");
  // The shared list comes first at a small depth, then deep.
  PickleValue shared;
  for (int i = 0; i < 60; ++i) shared = PickleValue::list({shared});
  PickleValue outer = shared;
  for (int i = 0; i < 60; ++i) outer = PickleValue::list({outer});
  EXPECT_WEFT_ERROR(save_pickle(path, PickleValue::list({shared, outer})), InvalidArgument,
                    "nested deeper than 100");
  EXPECT_EQ(folder.files(), 0);
  EXPECT_WEFT_ERROR(save_pickle(folder.path("no/a"), 1), Io, folder.path("no/a"));
}

}  // namespace
}  // namespace weft::io
