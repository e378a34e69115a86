#include "weft/io/pickle.h"

#include <zlib.h>

#include <limits>
#include <random>

#include "weft/core/runtime/allocator.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"
#include "weft/tests/io/pickles.h"

namespace weft::io {
namespace {

using testing::CheapScope;
using testing::Doubles;
using testing::golden_pickle;
using testing::kTwoFloats;
using testing::little;
using testing::parse;
using testing::pickled;
using testing::pickled_tensor;
using testing::pickled_text;
using testing::read_file;
using testing::TempFolder;
using testing::torch_file;
using testing::values;
using testing::write_file;

using Kind = PickleValue::Kind;

// --- What PyTorch wrote ----------------------------------------------------------------------------

TEST(Pickle, ReadsEveryDtype) {
  const PickleValue file = golden_pickle("dtypes.pth");
  EXPECT_EQ(file.entries().size(), 9u);
  EXPECT_EQ(file.at("f32").tensor().dtype(), DType::f32);
  EXPECT_EQ(values(file.at("f32")), (Doubles{1, -2.5, 3.25}));
  EXPECT_EQ(file.at("f64").tensor().dtype(), DType::f64);
  EXPECT_EQ(values(file.at("f64")), (Doubles{0.1, -1e-300}));
  EXPECT_EQ(file.at("f16").tensor().dtype(), DType::f32);
  EXPECT_EQ(values(file.at("f16")),
            (Doubles{1, -0.5, 65504, 0x1p-24, std::numeric_limits<double>::infinity()}));
  EXPECT_EQ(file.at("bf16").tensor().dtype(), DType::bf16);
  EXPECT_EQ(values(file.at("bf16")), (Doubles{1, -0.5, 3.140625}));
  EXPECT_EQ(file.at("i64").tensor().to_vector<std::int64_t>(),
            (std::vector<std::int64_t>{-(std::int64_t{1} << 62), 5}));
  EXPECT_EQ(file.at("i32").tensor().shape(), Shape());
  EXPECT_EQ(file.at("i32").tensor().item<std::int32_t>(), -3);
  EXPECT_EQ(file.at("u8").tensor().dtype(), DType::u8);
  EXPECT_EQ(values(file.at("u8")), (Doubles{0, 128, 255}));
  EXPECT_EQ(file.at("bool").tensor().dtype(), DType::boolean);
  EXPECT_EQ(values(file.at("bool")), (Doubles{1, 0}));
  EXPECT_EQ(file.at("empty").tensor().shape(), Shape({0, 4}));
}

TEST(Pickle, ReadsEveryValue) {
  const PickleValue file = golden_pickle("values.pth");
  EXPECT_TRUE(file.at("none").is_none());
  EXPECT_TRUE(file.at("yes").boolean());
  EXPECT_FALSE(file.at("no").boolean());
  EXPECT_EQ(file.at("int").integer(), -7);
  EXPECT_EQ(file.at("byte").integer(), 200);
  EXPECT_EQ(file.at("short").integer(), 60000);
  EXPECT_EQ(file.at("long").integer(), -(std::int64_t{1} << 40));
  EXPECT_EQ(file.at("most").integer(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(file.at("least").integer(), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(file.at("float").real(), 0.1);
  EXPECT_EQ(file.at("int").real(), -7.0);
  EXPECT_EQ(file.at("str").text(), "gr\xc3\xbc\xc3\x9f");
  EXPECT_EQ(file.at("bytes").kind(), Kind::bytes);
  EXPECT_EQ(file.at("bytes").text(), std::string("a\0\xff", 3));
  EXPECT_EQ(file.at("bytearray").text(), "xy");
  ASSERT_EQ(file.at("list").items().size(), 3u);
  EXPECT_EQ(file.at("list").items()[1].items()[0].real(), 2.5);
  EXPECT_TRUE(file.at("list").items()[2].items().empty());
  int size = 0;
  for (const char* key : {"tuple", "one", "two", "three", "four"}) {
    EXPECT_EQ(file.at(key).kind(), Kind::tuple);
    ASSERT_EQ(file.at(key).items().size(), static_cast<std::size_t>(size)) << key;
    for (int i = 0; i < size; ++i)
      EXPECT_EQ(file.at(key).items()[static_cast<std::size_t>(i)].integer(), i + 1);
    ++size;
  }
  EXPECT_EQ(file.at("set").kind(), Kind::set);
  EXPECT_EQ(file.at("set").items()[0].integer(), 5);
  EXPECT_EQ(file.at("counter").at(3).integer(), 2);
  EXPECT_EQ(file.at("size").items()[1].integer(), 3);
  EXPECT_EQ(file.at("device").text(), "cuda:1");
  EXPECT_EQ(file.at("dtype").text(), "torch.float16");
  EXPECT_EQ(file.at(1).text(), "int key");
  EXPECT_EQ(file.at(PickleValue()).text(), "no key");
  EXPECT_EQ(file.at(2.5).text(), "float key");
  EXPECT_EQ(file.at(PickleValue::bytes("k")).text(), "bytes key");
  EXPECT_EQ(file.at(1.0).text(), "int key");  // as in Python
  EXPECT_EQ(file.at(true).text(), "int key");
  EXPECT_EQ(file.find("k"), nullptr);  // neither are bytes a str there
}

TEST(Pickle, KeepsStridesAndSharedStorages) {
  for (const bool map : {false, true}) {
    const PickleValue file = golden_pickle("views.pth", {.map = map});
    const Tensor base = file.at("base").tensor(), t = file.at("transposed").tensor();
    EXPECT_EQ(t.shape(), Shape({4, 3, 2}));
    EXPECT_EQ(t.strides(), Strides({1, 4, 12}));
    EXPECT_EQ(values(file.at("part")), (Doubles{16, 18, 20, 22}));
    EXPECT_EQ(values(file.at("row")), (Doubles{0, 1, 2, 3}));
    EXPECT_EQ(file.at("expanded").tensor().strides(), Strides({0, 0}));
    EXPECT_EQ(values(file.at("expanded")), (Doubles{7, 7, 7, 7, 7, 7}));
    EXPECT_EQ(values(file.at("flat16")), (Doubles{1, 2, 3}));
    EXPECT_EQ(values(file.at("parameter")), (Doubles{4, 5}));
    EXPECT_EQ(values(file.at("tagged")), (Doubles{1, 1}));  // without its attribute
    EXPECT_EQ(values(file.at("tagged_parameter")), (Doubles{1}));
    raw::fill_(raw::select(base, 0, 0), -1);
    EXPECT_EQ(values(file.at("row")), (Doubles{-1, -1, -1, -1})) << "they share no memory";
    EXPECT_EQ(t.storage().get(), base.storage().get());
    // What was written to mapped memory has not reached the file.
    EXPECT_EQ(values(golden_pickle("views.pth").at("row")), (Doubles{0, 1, 2, 3}));
  }
}

TEST(Pickle, ReadsAStateDict) {
  const PickleValue file = golden_pickle("state_dict.pth");
  std::vector<std::string> names;
  for (const auto& [key, value] : file.entries()) names.push_back(key.text());
  EXPECT_EQ(names, (std::vector<std::string>{"a.weight", "a.bias", "norm.weight", "norm.bias",
                                             "norm.running_mean", "norm.running_var",
                                             "norm.num_batches_tracked", "b.weight", "b.bias"}));
  EXPECT_EQ(file.at("a.weight").tensor().storage().get(),
            file.at("b.weight").tensor().storage().get());
  EXPECT_EQ(values(file.at("norm.bias")), (Doubles{3, 3.125, 3.25}));
  EXPECT_EQ(file.at("norm.num_batches_tracked").tensor().item<std::int64_t>(), 0);
  EXPECT_EQ(file.attributes().at("_metadata").at("norm").at("version").integer(), 2);
}

TEST(Pickle, ReadsAnOptimisersState) {
  const PickleValue file = golden_pickle("checkpoint.pt");
  EXPECT_EQ(file.at("epoch").integer(), 3);
  const PickleValue& adam = file.at("optimizer");
  EXPECT_EQ(adam.at("param_groups").items()[0].at("lr").real(), 0.25);
  EXPECT_EQ(adam.at("param_groups").items()[0].at("params").items()[2].integer(), 2);
  EXPECT_EQ(values(adam.at("state").at(0).at("step")), (Doubles{1}));
  EXPECT_EQ(adam.at("state").at(0).at("exp_avg").tensor().shape(), Shape({3, 3}));
}

TEST(Pickle, MapsToADevice) {
  set_host_devices(2);
  {
    const PickleValue file = golden_pickle("views.pth", {.device = "cpu:1"});
    EXPECT_EQ(file.at("part").tensor().device(), Device("cpu:1"));
    EXPECT_EQ(values(file.at("part")), (Doubles{16, 18, 20, 22}));
  }
  set_host_devices(1);
}

TEST(Pickle, MapsToADeviceWithPagesOfTheFile) {
  set_host_devices(2);
  {
    const PickleValue file = golden_pickle("views.pth", {.device = "cpu:1", .map = true});
    EXPECT_EQ(file.at("part").tensor().device(), Device("cpu:1"));
    EXPECT_EQ(file.at("part").tensor().storage()->device(), Device("cpu:1"));
    EXPECT_FALSE(file.at("part").tensor().storage()->owned());
    EXPECT_EQ(values(file.at("part")), (Doubles{16, 18, 20, 22}));
  }
  set_host_devices(1);
}

TEST(Pickle, SaysWhatATorchScriptProgramIs) {
  EXPECT_WEFT_ERROR(golden_pickle("script.pt"), Unsupported, "a TorchScript program, not values");
}

TEST(Pickle, NamesTheValueThatWeftLacks) {
  EXPECT_WEFT_ERROR(golden_pickle("odd.pth"), Unsupported,
                    "tests/io/goldens/odd.pth: an integer of more than 64 bits; "
                    "io::load_state_dict(FILE:KEY) reads the tensors of one dict alone");
  EXPECT_WEFT_ERROR(golden_pickle("odd.pth"), Unsupported, "in \"big\"");
}

TEST(Pickle, SaysWhatPyTorchsOldFormatIs) {
  EXPECT_WEFT_ERROR(golden_pickle("legacy.pth"), Unsupported, "PyTorch's format from before 1.6");
  EXPECT_WEFT_ERROR(golden_pickle("python.safetensors"), Io,
                    "does not begin like a file of torch.save");
}

// --- Handmade files --------------------------------------------------------------------------------

TEST(Pickle, SharedContainersStayShared) {
  const PickleValue v =
      parse(torch_file(pickled("]q\x01K\x05"
                               "ah\x01\x86")));
  EXPECT_EQ(v.items()[0].items()[0].integer(), 5);
  EXPECT_EQ(v.items()[0].identity(), v.items()[1].identity());
}

// A reader that follows every reference would see 2^60 values; here there are 61 containers.
TEST(Pickle, DoublingListsCostNothing) {
  std::string text = "K\x01";
  for (int i = 0; i < 60; ++i) text += "q\x01h\x01\x86";
  const CheapScope cheap;
  EXPECT_EQ(parse(torch_file(pickled(text))).kind(), Kind::tuple);
}

TEST(Pickle, AnErrorNamesFileAndPlace) {
  TempFolder folder;
  const std::string path = folder.path("a.pth");
  write_file(path,
             torch_file(pickled("}" + pickled_text("model") + "}" + pickled_text("fc.weight") +
                                pickled_tensor(kTwoFloats, {2}, {1}) + "ss")));
  EXPECT_WEFT_ERROR(load_pickle(path), Io, path + ": storage \"0\" is missing");
  EXPECT_WEFT_ERROR(load_pickle(path), Io, "in \"fc.weight\", \"model\"");
  EXPECT_WEFT_ERROR(load_pickle(folder.path("no.pth")), Io, folder.path("no.pth"));
}

// --- Mutants ---------------------------------------------------------------------------------------

/// One to four bytes of [begin, end) changed, by chance to what means something in a pickle.
std::string mutant(std::string file, std::size_t begin, std::size_t end, std::mt19937& random) {
  static const std::string codes =
      "N().abcehjqrstuKJMXUQRG]}\x80\x81\x85\x86\x87\x88\x89\x8a\x8f\xff";
  for (unsigned n = random() % 4 + 1; n > 0; --n) {
    char& c = file[begin + random() % (end - begin)];
    switch (random() % 3) {
      case 0: c = static_cast<char>(random()); break;
      case 1: c = static_cast<char>(c ^ 1 << random() % 8); break;
      default: c = codes[random() % codes.size()];
    }
  }
  return file;
}

/// Reads all of it, so that a sanitizer would see a view outside its storage.
void visit(const PickleValue& value) {
  if (value.is_tensor() && value.tensor().numel() < 10'000) values(value);
  if (value.is_dict()) {
    for (const auto& [key, one] : value.entries()) visit(one);
  } else if (value.identity() != nullptr) {
    for (const PickleValue& one : value.items()) visit(one);
  }
}

// Half of them anywhere in the file, half in the pickle alone, with the checksum made right.
TEST(Pickle, TwoThousandMutantsAreReadOrRefused) {
  std::mt19937 random(1);
  int read = 0, refused = 0;
  for (const char* name : {"dtypes.pth", "values.pth", "views.pth", "state_dict.pth"}) {
    const std::string file = read_file(std::string("tests/io/goldens/") + name);
    const std::size_t pickle = file.find("\x80\x02"), end = file.find("PK", pickle);
    const std::size_t entry = file.find("PK\x01\x02");
    for (int i = 0; i < 500; ++i) {
      std::string bad =
          i % 2 == 0 ? mutant(file, 0, file.size(), random) : mutant(file, pickle, end, random);
      if (i % 10 == 0) bad.resize(random() % bad.size());
      if (i % 2 != 0) {
        const std::string text = bad.substr(pickle, end - pickle);
        const auto crc = crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size());
        bad.replace(entry + 16, 4, little(crc, 4));
      }
      try {
        visit(parse(bad));
        ++read;
      } catch (const Error& error) {
        EXPECT_NE(error.code(), ErrorCode::Internal) << error.what();
        EXPECT_NE(error.code(), ErrorCode::Library) << error.what();
        ++refused;
      }
    }
  }
  EXPECT_EQ(read + refused, 2000);
  EXPECT_GT(read, 100);  // a change in a number or a text makes another good file
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace weft::io
