#include "weft/io/state_dict.h"

#include "weft/io/pickle.h"
#include "weft/io/safetensors.h"
#include "weft/tensor/creation.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

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
  EXPECT_WEFT_ERROR(load_state_dict(path + ":optimizer"), InvalidArgument,
                    "\"state\" has type dict, not tensor");
  EXPECT_WEFT_ERROR(load_state_dict(kGoldens + "legacy.pth"), Unsupported, "from before 1.6");
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
  EXPECT_WEFT_ERROR(load_state_dict(path), InvalidArgument,
                    "holds a value of type list, not a state dict");
  save_pickle(path, PickleValue::dict({{1, ones({1})}}));
  EXPECT_WEFT_ERROR(load_state_dict(path), InvalidArgument, "a key that is no str");
  save_pickle(path, PickleValue::dict({}));
  EXPECT_TRUE(load_state_dict(path).empty());
}

}  // namespace
}  // namespace weft::io
