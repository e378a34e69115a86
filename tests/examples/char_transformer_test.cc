// char_transformer: compared with PyTorch, its text, and a run of the program.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "weft/examples/char_transformer.h"
#include "weft/examples/text.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/examples/launched.h"
#include "weft/weft.h"

namespace weft {
namespace {

using nlohmann::json;

/// The same text as in write_transformer_goldens.py.
std::string golden_text() {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += static_cast<char>(97 + (i * i + i / 7) % 23);
  return text;
}

// --- Against PyTorch -----------------------------------------------------------------------------

TEST(CharTransformer, TrainsAsPyTorchDoes) {
  const json goldens = json::parse(std::ifstream("tests/examples/transformer_goldens.json"));
  constexpr std::int64_t kContext = 12;
  const examples::Text text(golden_text());
  for (const json& run : goldens["runs"]) {
    const bool f64 = run["dtype"] == "f64";
    manual_seed(run["seed"]);
    examples::CharTransformer model({.characters = text.characters(),
                                     .context = kContext,
                                     .width = 16,
                                     .heads = 4,
                                     .layers = 2});
    std::vector<std::string> names;
    for (const auto& [name, parameter] : model.named_parameters()) names.push_back(name);
    EXPECT_EQ(names, run["names"].get<std::vector<std::string>>());
    model.to(f64 ? DType::f64 : DType::f32);
    optim::AdamW adam(model.parameters(), {.lr = 3e-3});
    data::DataLoader loader(examples::Windows(text.numbers(), kContext),
                            {.batch_size = 8, .shuffle = run["shuffle"].get<bool>()});
    EXPECT_EQ(loader.dataset().size(), run["windows"]);
    std::size_t step = 0;
    for (auto& [x, y] : loader) {
      adam.zero_grad();
      const Tensor loss = examples::next_character_loss(model, x, y);
      loss.backward();
      adam.step();
      // f64: sums in another order, over 20 steps. f32: AdamW's first steps are equally long for
      // gradients that are mostly rounding errors.
      const double expected = run["losses"][step];
      EXPECT_NEAR(loss.item<double>(), expected, (f64 ? 1e-9 : 1e-4) * expected) << step;
      if (++step == run["losses"].size()) break;
    }
  }
}

TEST(CharTransformer, LooksAtNothingThatComesLater) {
  manual_seed(0);
  examples::CharTransformer model({.characters = 5, .context = 6, .width = 8, .heads = 2});
  const NoGrad no_grad;
  const auto logits = [&](const std::vector<std::int64_t>& text) {
    return model(from_vector(text, {1, 6})).to_vector<float>();
  };
  const auto a = logits({0, 1, 2, 3, 4, 0}), b = logits({0, 1, 2, 3, 1, 2});
  for (std::size_t i = 0; i < 4 * 5; ++i) EXPECT_EQ(a[i], b[i]) << i;
  EXPECT_NE(a[4 * 5], b[4 * 5]);
  EXPECT_EQ(model(from_vector<std::int64_t>({3}, {1, 1})).shape(), Shape({1, 1, 5}));
}

// --- Text ----------------------------------------------------------------------------------------

TEST(Text, NumbersBytesInTheirOrder) {
  const examples::Text text("b\xc3\xa9 ab");
  EXPECT_EQ(text.characters(), 5);
  EXPECT_EQ(text.numbers(), (std::vector<std::int64_t>{2, 4, 3, 0, 1, 2}));
  EXPECT_EQ(text.character(4), '\xc3');
  EXPECT_EQ(text.number('a'), 1);
  EXPECT_WEFT_ERROR(text.number('z'), InvalidArgument, "there is no 'z' in the text");
  EXPECT_WEFT_ERROR(examples::Text(""), InvalidArgument, "not one character");
}

TEST(Text, IsReadFromAFileOrAFolder) {
  const testing::TempFolder folder;
  EXPECT_WEFT_ERROR(examples::read_text(folder.path(".")), Io, "no file *.md or *.txt");
  EXPECT_WEFT_ERROR(examples::read_text(folder.path("a.md")), Io, "cannot be read");
  std::ofstream(folder.path("b.txt")) << "second";
  std::ofstream(folder.path("a.md")) << "first";
  std::ofstream(folder.path("c.png")) << "none";
  EXPECT_EQ(examples::read_text(folder.path(".")), "firstsecond");
  EXPECT_EQ(examples::read_text(folder.path("c.png")), "none");
}

TEST(Text, WindowsOverlapByHalf) {
  const std::vector<std::int64_t> text = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  const examples::Windows windows(text, 4);
  ASSERT_EQ(windows.size(), 3);
  const auto [x, y] = windows.get_batch(std::vector<std::int64_t>{2, 0});
  EXPECT_EQ(x.shape(), Shape({2, 4}));
  EXPECT_EQ(x.to_vector<std::int64_t>(), (std::vector<std::int64_t>{4, 5, 6, 7, 0, 1, 2, 3}));
  EXPECT_EQ(y.to_vector<std::int64_t>(), (std::vector<std::int64_t>{5, 6, 7, 8, 1, 2, 3, 4}));
  EXPECT_EQ(examples::Windows(text, 9).size(), 1);
  EXPECT_EQ(examples::Windows(text, 1).size(), 9);
  EXPECT_WEFT_ERROR(examples::Windows(text, 10), InvalidArgument,
                    "a context of 10 needs a text of at least 11 characters, not 10");
}

// --- The program ---------------------------------------------------------------------------------

class CharTransformerRun : public testing::LaunchedTest {
 protected:
  CharTransformerRun() : LaunchedTest("env") {
    std::ofstream out(folder.path("data/text.txt"));
    for (int i = 0; i < 60; ++i) out << "abcdefgh ";
  }
  static constexpr const char* kSmall =
      "--context 8 --width 16 --heads 2 --layers 1 --batch-size 16 --lr 0.02 --sample 30 ";
};

TEST_F(CharTransformerRun, LearnsAndWritesOn) {
  const std::string options = kSmall + std::string("--epochs 20 --start ab --temperature 0.1");
  expect_resumes(false, "char_transformer", options, 11);
  // In this text each letter determines the next one.
  EXPECT_LT(metrics("whole")["test"]["bits_per_character"], 0.1);
  EXPECT_EQ(testing::read_file(folder.path("whole/sample.txt")),
            "abcdefgh abcdefgh abcdefgh abcde\n");
  EXPECT_HAS(log(), "pieces/s");
  EXPECT_TRUE(std::filesystem::exists(folder.path("whole/loss.svg")));
}

TEST_F(CharTransformerRun, SaysWhatIsWrong) {
  EXPECT_EQ(run("x", false, "char_transformer", kSmall + std::string("--start ?")), 1);
  EXPECT_HAS(log(), "there is no '?' in the text");
  EXPECT_EQ(run("x", false, "char_transformer", "--context 500"), 1);
  EXPECT_HAS(log(), "a context of 500 needs a text of at least 501 characters");
  EXPECT_EQ(run("x", false, "char_transformer", "--width 10 --context 8"), 1);
  EXPECT_HAS(log(), "heads");
}

}  // namespace
}  // namespace weft
