#include "weft/io/state_dict.h"

#include "weft/io/pickle.h"
#include "weft/io/safetensors.h"
#include "weft/tensor/creation.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"
#include "weft/tests/io/zip_files.h"

namespace weft::io {
namespace {

using testing::TempFolder;
using testing::write_file;

const std::string kGoldens = "tests/io/goldens/";

std::vector<std::string> names(const NamedTensors& tensors) {
  std::vector<std::string> list;
  for (const auto& item : tensors) list.push_back(item.first);
  return list;
}

TEST(StateDict, ReadsEitherFormat) {
  EXPECT_EQ(names(load_state_dict(kGoldens + "python.safetensors")).size(), 8u);
  const NamedTensors tensors = load_state_dict(kGoldens + "state_dict.pth");
  ASSERT_EQ(tensors.size(), 9u);
  EXPECT_EQ(tensors[0].first, "a.weight");
  EXPECT_EQ(tensors[7].first, "b.weight");
  EXPECT_EQ(tensors[0].second.storage().get(), tensors[7].second.storage().get());
}

TEST(StateDict, TheContentSaysWhichFormatItIs) {
  TempFolder folder;
  const NamedTensors w = {{"w", tensor({1, 2})}};
  save_safetensors(folder.path("a.pth"), w);
  save_pickle(folder.path("b.safetensors"), PickleValue::state_dict(w));
  for (const char* name : {"a.pth", "b.safetensors"}) {
    const NamedTensors got = load_state_dict(folder.path(name));
    EXPECT_EQ(names(got), names(w));
    EXPECT_EQ(got[0].second.to_vector<double>(), (std::vector<double>{1, 2}));
  }
  EXPECT_FALSE(is_pickle_file(folder.path("a.pth")));
  EXPECT_TRUE(is_pickle_file(folder.path("b.safetensors")));
  // A safetensors header whose length has the bytes of a zip's start.
  write_file(folder.path("c"), std::string("PK\x03\x04\0\0\0\0{", 9));
  EXPECT_FALSE(is_pickle_file(folder.path("c")));
  write_file(folder.path("d"), "");
  EXPECT_FALSE(is_pickle_file(folder.path("d")));
}

TEST(StateDict, AKeyNamesOneOfSeveral) {
  const std::string path = kGoldens + "checkpoint.pt";
  EXPECT_EQ(load_state_dict(path + ":state_dict")[0].first, "module.a.weight");
  EXPECT_WEFT_ERROR(load_state_dict(path), InvalidArgument,
                    "no state dict: \"epoch\" has type int, not tensor; name the one you mean: " +
                        path + ":state_dict (9 tensors)");
  EXPECT_WEFT_ERROR(load_state_dict(path + ":model"), InvalidArgument,
                    "no key \"model\"; there are \"epoch\", \"state_dict\", \"optimizer\"");
  EXPECT_WEFT_ERROR(load_state_dict(path + ":epoch"), InvalidArgument, ":epoch: has type int");
  EXPECT_WEFT_ERROR(load_state_dict(path + ":epoch:x"), InvalidArgument, ":epoch: has type int");
  EXPECT_WEFT_ERROR(load_state_dict(path + ":optimizer"), InvalidArgument,
                    "\"state\" has type dict, not tensor");
  EXPECT_WEFT_ERROR(load_state_dict(kGoldens + "legacy.pth"), Unsupported, "from before 1.6");
}

TEST(StateDict, KeysNameADictInADict) {
  TempFolder folder;
  const std::string path = folder.path("a");
  const auto dict = [](PickleValue::Entries entries) {
    return PickleValue::dict(std::move(entries));
  };
  const auto weight = [&](const char* name) { return dict({{name, ones({1})}}); };
  save_pickle(path, dict({{"ema", dict({{"rate", 0.5},
                                        {"model", weight("a")},
                                        {"x:y", weight("b")},
                                        {"\x1b[2J", weight("c")}})},
                          {"model", weight("d")}}));
  EXPECT_EQ(names(load_state_dict(path + ":model")), std::vector<std::string>{"d"});
  EXPECT_EQ(names(load_state_dict(path + ":ema:model")), std::vector<std::string>{"a"});
  EXPECT_EQ(names(load_state_dict(path + ":ema:x:y")), std::vector<std::string>{"b"});
  EXPECT_WEFT_ERROR(load_state_dict(path + ":ema"), InvalidArgument,
                    "\"rate\" has type float, not tensor; name the one you mean: " + path +
                        ":ema:model (1 tensors), " + path + ":ema:x:y (1 tensors)");
  EXPECT_WEFT_ERROR(load_state_dict(path + ":ema:z"), InvalidArgument,
                    path + ":ema: no key \"z\"; there are \"rate\", \"model\", \"x:y\"");
  try {
    load_state_dict(path + ":ema");
  } catch (const Error& error) {
    EXPECT_LACKS(error.what(), "\x1b");
  }
}

// odd.pth has values that weft lacks beside the weights; a storage is missing in the other file.
TEST(StateDict, OnlyTheDictThatIsAskedForIsRead) {
  const std::string path = kGoldens + "odd.pth";
  const NamedTensors tensors = load_state_dict(path + ":model:state_dict");
  EXPECT_EQ(names(tensors), (std::vector<std::string>{"w", "b"}));
  EXPECT_EQ(tensors[0].second.to_vector<double>(), (std::vector<double>{1, 2}));
  EXPECT_WEFT_ERROR(load_state_dict(path), InvalidArgument, "\"epoch\" has type int, not tensor");
  EXPECT_WEFT_ERROR(load_state_dict(path + ":model"), InvalidArgument,
                    path + ":model:state_dict (2 tensors)");
  TempFolder folder;
  const std::string lacking = folder.path("a");
  write_file(lacking,
             testing::torch_file(
                 testing::pickled(
                     "}" + testing::pickled_text("other") + "}" + testing::pickled_text("w") +
                     testing::pickled_tensor(testing::pickled_storage("9", 2), {2}, {1}) + "ss" +
                     testing::pickled_text("model") + "}" + testing::pickled_text("w") +
                     testing::pickled_tensor(testing::pickled_storage("0", 2), {2}, {1}) + "ss"),
                 {std::string(8, '\0')}));
  EXPECT_EQ(names(load_state_dict(lacking + ":model")), std::vector<std::string>{"w"});
  EXPECT_WEFT_ERROR(load_state_dict(lacking + ":other"), Io, "storage \"9\" is missing");
}

TEST(StateDict, ATensorThatWeftLacksIsNamed) {
  TempFolder folder;
  const std::string path = folder.path("a");
  write_file(path, testing::torch_file(testing::pickled(
                       "}" + testing::pickled_text("q") +
                       testing::pickled_global("torch._utils", "_rebuild_qtensor") + ")Rs")));
  EXPECT_WEFT_ERROR(load_state_dict(path), Unsupported,
                    path + ": \"q\": weft has nothing for torch._utils._rebuild_qtensor");
}

TEST(StateDict, AKeyOfSafetensorsIsTheBeginningOfNames) {
  TempFolder folder;
  const std::string path = folder.path("a:b");  // a colon in the file's own name
  save_safetensors(path, {{"model.w", ones({1})}, {"models", ones({1})}, {"part0.w", ones({1})}});
  EXPECT_EQ(load_state_dict(path).size(), 3u);
  EXPECT_EQ(names(load_state_dict(path + ":model")), std::vector<std::string>{"w"});
  EXPECT_WEFT_ERROR(load_state_dict(path + ":x"), InvalidArgument,
                    "no tensor's name begins with x.");
}

TEST(StateDict, OtherValuesAreNone) {
  TempFolder folder;
  const std::string path = folder.path("a");
  save_pickle(path, PickleValue::list({}));
  EXPECT_WEFT_ERROR(load_state_dict(path), InvalidArgument, "has type list, not a state dict");
  save_pickle(path, PickleValue::dict({{1, ones({1})}}));
  EXPECT_WEFT_ERROR(load_state_dict(path), InvalidArgument, "a key that is no str");
  save_pickle(path, PickleValue::dict({}));
  EXPECT_TRUE(load_state_dict(path).empty());
}

TEST(StateDict, OneDictUnderManyKeysIsLookedAtOnce) {
  TempFolder folder;
  const std::string path = folder.path("a");
  std::string inside, entries;
  for (int i = 0; i < 300'000; ++i) {
    inside += "h\1h\1";   // a text, twice
    entries += "h\1h\2";  // the text and the dict
  }
  write_file(path, testing::torch_file(testing::pickled("}(" + testing::pickled_text("x") + "q\1" +
                                                        "}(" + inside + "uq\2" + entries + "u")));
  const testing::CheapScope cheap;
  EXPECT_WEFT_ERROR(load_state_dict(path), InvalidArgument, "\"x\" has type dict, not tensor");
}

}  // namespace
}  // namespace weft::io
