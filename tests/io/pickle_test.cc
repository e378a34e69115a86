#include "weft/io/pickle.h"

#include <cmath>
#include <limits>
#include <random>

#include "weft/core/runtime/allocator.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"
#include "weft/tests/io/zip_files.h"

namespace weft::io {
namespace {

using testing::as_bytes;
using testing::CheapScope;
using testing::little;
using testing::pickled;
using testing::pickled_global;
using testing::pickled_int;
using testing::pickled_storage;
using testing::pickled_tensor;
using testing::pickled_text;
using testing::read_file;
using testing::TempFolder;
using testing::torch_file;
using testing::torch_parts;
using testing::write_file;
using testing::zip;
using testing::ZipEnd;
using testing::ZipPart;

using Doubles = std::vector<double>;
using Kind = PickleValue::Kind;

PickleValue golden(const std::string& name, const PickleOptions& options = {}) {
  return load_pickle("tests/io/goldens/" + name, options);
}

PickleValue parse(const std::string& file) { return parse_pickle(as_bytes(file)); }

Doubles values(const PickleValue& v) { return v.tensor().to_vector<double>(); }

// --- What PyTorch wrote ----------------------------------------------------------------------------

TEST(Pickle, ReadsEveryDtype) {
  const PickleValue file = golden("dtypes.pth");
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
  const PickleValue file = golden("values.pth");
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
    const PickleValue file = golden("views.pth", {.map = map});
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
    EXPECT_EQ(values(golden("views.pth").at("row")), (Doubles{0, 1, 2, 3}));
  }
}

TEST(Pickle, ReadsAStateDict) {
  const PickleValue file = golden("state_dict.pth");
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
  const PickleValue file = golden("checkpoint.pt");
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
    const PickleValue file = golden("views.pth", {.device = "cpu:1"});
    EXPECT_EQ(file.at("part").tensor().device(), Device("cpu:1"));
    EXPECT_EQ(values(file.at("part")), (Doubles{16, 18, 20, 22}));
  }
  set_host_devices(1);
}

TEST(Pickle, MapsToADeviceWithPagesOfTheFile) {
  set_host_devices(2);
  {
    const PickleValue file = golden("views.pth", {.device = "cpu:1", .map = true});
    EXPECT_EQ(file.at("part").tensor().device(), Device("cpu:1"));
    EXPECT_EQ(file.at("part").tensor().storage()->device(), Device("cpu:1"));
    EXPECT_FALSE(file.at("part").tensor().storage()->owned());
    EXPECT_EQ(values(file.at("part")), (Doubles{16, 18, 20, 22}));
  }
  set_host_devices(1);
}

TEST(Pickle, SaysWhatATorchScriptProgramIs) {
  EXPECT_WEFT_ERROR(golden("script.pt"), Unsupported, "a TorchScript program, not values");
}

TEST(Pickle, NamesTheValueThatWeftLacks) {
  EXPECT_WEFT_ERROR(golden("odd.pth"), Unsupported,
                    "tests/io/goldens/odd.pth: an integer of more than 64 bits; "
                    "io::load_state_dict(FILE:KEY) reads the tensors of one dict alone");
  EXPECT_WEFT_ERROR(golden("odd.pth"), Unsupported, "in \"big\"");
}

TEST(Pickle, SaysWhatPyTorchsOldFormatIs) {
  EXPECT_WEFT_ERROR(golden("legacy.pth"), Unsupported, "PyTorch's format from before 1.6");
  EXPECT_WEFT_ERROR(golden("python.safetensors"), Io, "does not begin like a file of torch.save");
}

// --- What weft wrote ------------------------------------------------------------------------------

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

TEST(Pickle, WritesWhatItReads) {
  TempFolder folder;
  const std::string path = folder.path("a.pth");
  for (const char* name :
       {"dtypes.pth", "values.pth", "views.pth", "state_dict.pth", "checkpoint.pt"}) {
    const PickleValue value = golden(name);
    save_pickle(path, value);
    for (const bool map : {false, true}) expect_same(load_pickle(path, {.map = map}), value);
    EXPECT_EQ(folder.files(), 1);
  }
}

TEST(Pickle, WritesTheSameBytesForTheSameValues) {
  TempFolder folder;
  save_pickle(folder.path("a"), golden("checkpoint.pt"));
  save_pickle(folder.path("b"), load_pickle(folder.path("a")));
  EXPECT_EQ(read_file(folder.path("a")), read_file(folder.path("b")));
}

TEST(Pickle, WritesSharedStoragesOnce) {
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

TEST(Pickle, WritesTensorsOfAnyLayoutAndDevice) {
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

TEST(Pickle, WritesSharedContainersOnce) {
  TempFolder folder;
  PickleValue value = 1;
  for (int i = 0; i < 60; ++i) value = PickleValue::list({value, value});
  save_pickle(folder.path("a"), value);
  const PickleValue back = load_pickle(folder.path("a"));
  EXPECT_EQ(back.items()[0].identity(), back.items()[1].identity());
}

TEST(Pickle, WritesLongContainersInBatches) {
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

TEST(Pickle, WritesValuesAsDeepAsItReads) {
  TempFolder folder;
  for (const PickleValue& inner : {PickleValue(7), PickleValue("text"), PickleValue(ones({1}))}) {
    PickleValue deep = inner;
    for (int i = 0; i < 100; ++i) deep = PickleValue::list({deep});
    save_pickle(folder.path("a"), deep);
    expect_same(load_pickle(folder.path("a")), deep);
  }
}

TEST(Pickle, RefusesToSaveWhatCannotBeLoaded) {
  TempFolder folder;
  const std::string path = folder.path("a");
  EXPECT_WEFT_ERROR(save_pickle(path, "\xff"), InvalidArgument, "a text is not UTF-8");
  PickleValue deep;
  for (int i = 0; i < 101; ++i) deep = PickleValue::list({deep});
  EXPECT_WEFT_ERROR(save_pickle(path, deep), InvalidArgument, "nested deeper than 100");
  EXPECT_WEFT_ERROR(PickleValue::dict({{1, 2}, {1, 3}}), InvalidArgument, "1 is given twice");
  // Equal in Python, which would keep the last one.
  EXPECT_WEFT_ERROR(PickleValue::dict({{1, 2}, {true, 3}}), InvalidArgument, "True is given twice");
  EXPECT_WEFT_ERROR(PickleValue::dict({{1, 2}, {1.0, 3}}), InvalidArgument, "1 is given twice");
  EXPECT_WEFT_ERROR(PickleValue::dict({{0.0, 2}, {-0.0, 3}}), InvalidArgument, "given twice");
  EXPECT_WEFT_ERROR(PickleValue::ordered_dict({}, 1), InvalidArgument, "attributes are a dict");
  EXPECT_WEFT_ERROR(save_pickle(path, PickleValue::dict({{std::string(4097, 'k'), 1}})),
                    InvalidArgument, "a key of 4097 bytes, over 4096");
  EXPECT_WEFT_ERROR(save_pickle(path, PickleValue::list(PickleValue::Items(5'000'000, 1))),
                    InvalidArgument, "load_pickle() would refuse them");
  // First where it is not deep.
  PickleValue shared;
  for (int i = 0; i < 60; ++i) shared = PickleValue::list({shared});
  PickleValue outer = shared;
  for (int i = 0; i < 60; ++i) outer = PickleValue::list({outer});
  EXPECT_WEFT_ERROR(save_pickle(path, PickleValue::list({shared, outer})), InvalidArgument,
                    "nested deeper than 100");
  EXPECT_EQ(folder.files(), 0);
  EXPECT_WEFT_ERROR(save_pickle(folder.path("no/a"), 1), Io, folder.path("no/a"));
}

// --- Handmade files --------------------------------------------------------------------------------

TEST(Pickle, ReadsZip64AndComments) {
  const std::string pickle = pickled(pickled_tensor(pickled_storage("0", 2), {2}, {1}));
  const std::string data = little(0x3f800000, 4) + little(0x40000000, 4);
  std::vector<ZipPart> parts = torch_parts(pickle, {data});
  for (ZipPart& part : parts) part.in64 = true;
  EXPECT_EQ(values(parse(zip(parts, {.in64 = true}))), (Doubles{1, 2}));
  EXPECT_EQ(values(parse(zip(parts, {.comment = "PK\x05\x06 and more"}))), (Doubles{1, 2}));
}

TEST(Pickle, SharedContainersStayShared) {
  const PickleValue v =
      parse(torch_file(pickled("]q\x01K\x05"
                               "ah\x01\x86")));
  EXPECT_EQ(v.items()[0].items()[0].integer(), 5);
  EXPECT_EQ(v.items()[0].identity(), v.items()[1].identity());
}

// 2^60 values for who walks over all of them; here, 61 containers.
TEST(Pickle, DoublingListsCostNothing) {
  std::string text = "K\x01";
  for (int i = 0; i < 60; ++i) text += "q\x01h\x01\x86";
  const CheapScope cheap;
  EXPECT_EQ(parse(torch_file(pickled(text))).kind(), Kind::tuple);
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

// Each list is used twice, first where it is not deep.
std::string deep_by_sharing() {
  std::string text = "(N";
  for (int i = 0; i < 50; ++i) text += repeated("\x85", 60) + "q\x01h\x01";
  return text + "t";
}

struct BadPickle {
  const char* name;
  std::string pickle;
  const char* code;
  const char* message;
};

const std::string kFloats = pickled_storage("0", 2);

/// A tensor with this as _rebuild_tensor_v2's argument `metadata`.
std::string marked_tensor(const std::string& metadata) {
  std::string text = pickled_tensor(kFloats, {2}, {1});
  return text.insert(text.size() - 2, metadata);  // before the end of the arguments
}

std::vector<BadPickle> bad_pickles() {
  const std::string os = pickled_global("os", "system") + pickled_text("true") + "\x85R";
  const std::string huge = pickled_int(std::int64_t{1} << 62);
  return {
      {"Nothing", "", "Io", "the pickle ends inside an instruction"},
      {"NoStop", "\x80\x02N", "Io", "the pickle ends inside an instruction"},
      {"EmptyStack", "\x80\x02.", "Io", "finds no value on the stack"},
      {"LeftOver", pickled("NN"), "Io", "values are left over"},
      {"OpenMark", pickled("(N"), "Io", "values are left over"},
      {"NoMark", pickled("Nt"), "Io", "no mark on the stack"},
      {"TupleOfNothing", pickled("\x85"), "Io", "a tuple of 1 finds fewer values"},
      {"TupleAcrossMark", pickled("N(\x85"), "Io", "a tuple of 1 finds fewer values"},
      {"PopAcrossMark", pickled("]N(a"), "Io", "finds fewer values"},
      {"ShortNumber", "\x80\x02J\x01", "Io", "inside an instruction of 4 bytes"},
      {"LongText", pickled("X\xff\xff\xff\xff"), "Io", "inside an instruction of 4294967295 bytes"},
      {"LongInteger", pickled("\x8a\x09" + std::string(8, '\0') + "\x01"), "Unsupported",
       "an integer of more than 64 bits"},
      {"UnsignedInteger", pickled("\x8a\x09" + std::string(8, '\xff') + std::string(1, '\0')),
       "Unsupported", "an integer of more than 64 bits"},
      {"NoMemo", pickled("h\x07"), "Io", "value 7 is used before it is remembered"},
      {"AppendToDict", pickled("}Na"), "Io", "items are added to a dict, not a list"},
      {"SetItemOfList", pickled("]NNs"), "Io", "items are added to a list, not a dict"},
      {"KeyWithoutValue", pickled("}(Nu"), "Io", "a key without a value"},
      {"KeyTwice", pickled("}(K\x01NK\x01Nu"), "Io",
       "PyTorch data: a dict: [PickleValue] the key 1 is given twice"},
      {"ListAsKey", pickled("}]Ns"), "Unsupported", "PyTorch data: a dict with a key of type list"},
      {"LongKey", pickled("}" + pickled_text(std::string(5000, 'k')) + "Ns"), "Unsupported",
       "a key of more than 4096 bytes"},
      {"OsSystem", pickled(os), "Unsupported", "the global \"os.system\" is none that a file of"},
      {"Eval", pickled(pickled_global("__builtin__", "eval") + ")R"), "Unsupported",
       "the global \"builtins.eval\" is none"},
      {"OwnClass", pickled(pickled_global("__main__", "Net") + ")\x81"), "Unsupported",
       "the global \"__main__.Net\" is none that a file of weights needs"},
      {"DotsInName", pickled(pickled_global("torch", "nn.Linear") + ")R"), "Unsupported",
       "the global \"torch.nn.Linear\" is none"},
      {"GlobalWithoutEnd", pickled("ctorch\nSize"), "Io", "a global's name does not end"},
      {"ControlCharacters", pickled(pickled_global("a\x1b[2J", "b")), "Unsupported",
       "the global \"a?[2J.b\" is none"},
      {"StackGlobal", pickled(pickled_text("os") + pickled_text("system") + "\x93"), "Unsupported",
       "instruction 147 of the pickle, at byte 20, is not one that torch.load(weights_only=True)"},
      {"Instance", pickled("(ios\nsystem\n"), "Unsupported", "instruction 105"},
      {"Extension", pickled("\x82\x01"), "Unsupported", "instruction 130"},
      {"PersistentText", pickled("Pstorage\n"), "Unsupported", "instruction 80"},
      {"Protocol4", std::string("\x80\x04\x95") + little(2, 8) + "N.", "Unsupported",
       "pickle protocol 4; save with 2, torch.save's default"},
      {"OtherDtype", pickled(pickled_global("torch._utils", "_rebuild_tensor_v3") + ")R"),
       "Unsupported", "a dtype that weft lacks (uint16, uint32, uint64, float8 ...)"},
      {"Scheme", pickled(pickled_global("torch.cuda.sparse", "FloatTensor") + ")R"), "Unsupported",
       "weft has nothing for torch.cuda.sparse.FloatTensor"},
      {"Negated", pickled(marked_tensor("}" + pickled_text("neg") + "\x88s")), "Unsupported",
       "a tensor that is marked as \"neg\""},
      {"OddMark", pickled(marked_tensor("K\x01")), "Unsupported", "a tensor that is marked"},
      {"Complex", pickled(pickled_global("__builtin__", "complex")), "Unsupported",
       "weft has nothing for builtins.complex"},
      {"Sparse", pickled(pickled_global("torch._utils", "_rebuild_sparse_tensor")), "Unsupported",
       "weft has nothing for torch._utils._rebuild_sparse_tensor"},
      {"CallOfText", pickled(pickled_text("f") + ")R"), "Io", "what is called has type str"},
      {"CallOfDtype", pickled(pickled_global("torch", "float32") + ")R"), "Io",
       "torch.float32 is called, but is no function"},
      {"ArgumentsNoTuple", pickled(pickled_global("torch", "Size") + "NR"), "Io",
       "an argument list has type None, not tuple"},
      {"ManyArguments", pickled(pickled_global("torch", "Size") + "(" + repeated("N", 17) + "tR"),
       "Io", "too many arguments"},
      {"RebuildOfItself",
       pickled(pickled_global("torch._tensor", "_rebuild_from_type_v2") + "q\x01(h\x01" +
               pickled_global("torch", "Tensor") + ")NtR"),
       "Io", "_rebuild_from_type_v2 of itself"},
      {"Subclass",
       pickled(pickled_global("torch._tensor", "_rebuild_from_type_v2") + "(" +
               pickled_global("torch._utils", "_rebuild_tensor_v2") +
               pickled_global("torch", "Size") + ")NtR"),
       "Unsupported", "weft has no tensors of type torch.Size"},
      {"BuildOfList", pickled("]}b"), "Unsupported", "attributes of a list"},
      {"PairsOfThree",
       pickled(pickled_global("collections", "OrderedDict") + "]NNN\x87"
                                                              "a\x85R"),
       "Io", "something else than pairs"},
      {"NoPair", pickled(pickled_global("collections", "OrderedDict") + "]Na\x85R"), "Io",
       "something else than pairs"},
      {"HighCharacter",
       pickled(pickled_global("_codecs", "encode") + pickled_text("\xe2\x82\xac") + "\x85R"), "Io",
       "bytes with a character above 255"},
      {"PersistentList", pickled("]Q"), "Io", "the name of a storage has type list, not tuple"},
      {"PersistentShort", pickled(")Q"), "Io", "a reference to something else than a storage"},
      {"StorageAlone", pickled(kFloats), "Unsupported", "a storage without a tensor"},
      {"StorageMissing", pickled(pickled_tensor(pickled_storage("9", 2), {2}, {1})), "Io",
       "storage \"9\" is missing"},
      {"StorageElsewhere", pickled(pickled_tensor(pickled_storage("../version", 2), {2}, {1})),
       "Io", "storage \"../version\" is missing"},
      {"StorageTooLarge", pickled(pickled_tensor(pickled_storage("0", 3), {2}, {1})), "Io",
       "claims 3 elements of 4 bytes, its record has 8 bytes"},
      {"StorageHuge",
       pickled(pickled_tensor(pickled_storage("0", std::int64_t{1} << 62), {2}, {1})), "Io",
       "claims 4611686018427387904 elements of 4 bytes"},
      {"StorageNegative", pickled(pickled_tensor(pickled_storage("0", -2), {2}, {1})), "Io",
       "claims -2 elements"},
      {"StorageShort", pickled(pickled_tensor(pickled_storage("0", 4, "ShortStorage"), {2}, {1})),
       "Unsupported", "weft has no dtype for torch.ShortStorage"},
      {"StorageTwoTypes",
       pickled(pickled_tensor(kFloats, {2}, {1}) +
               pickled_tensor(pickled_storage("0", 2, "IntStorage"), {2}, {1}) + "\x86"),
       "Io", "storage \"0\" has two types or sizes"},
      {"BadBool", pickled(pickled_tensor(pickled_storage("0", 8, "BoolStorage"), {8}, {1})), "Io",
       "value 128 in the bools of record \"a/data/0\""},
      {"ShapeHuge", pickled(pickled_tensor(kFloats, {std::int64_t{1} << 62}, {1})), "Io",
       "reaches outside a storage of 2 elements"},
      {"ShapeOverflow",
       pickled(pickled_tensor(kFloats, {std::int64_t{1} << 32, std::int64_t{1} << 32}, {0, 0})),
       "Io", "a tensor of shape"},
      {"ShapeNegative", pickled(pickled_tensor(kFloats, {-1}, {1})), "Io", "a tensor of shape"},
      {"StrideNegative", pickled(pickled_tensor(kFloats, {2}, {-1}, 1)), "Io", "negative stride"},
      {"StrideHuge", pickled(pickled_tensor(kFloats, {3}, {std::int64_t{1} << 62})), "Io",
       "reaches outside a storage of 2 elements"},
      {"OffsetPastTheEnd", pickled(pickled_tensor(kFloats, {2}, {1}, 1)), "Io",
       "reaches outside a storage of 2 elements"},
      {"OffsetNegative", pickled(pickled_tensor(kFloats, {1}, {1}, -1)), "Io",
       "reaches outside a storage of 2 elements"},
      {"NineDimensions",
       pickled(pickled_tensor(kFloats, std::vector<std::int64_t>(9, 1),
                              std::vector<std::int64_t>(9, 1))),
       "Unsupported", "a tensor with 9 dimensions"},
      {"ShapeOfTexts",
       pickled(pickled_global("torch._utils", "_rebuild_tensor") + "(" + kFloats +
               "K\x01N\x85N\x85tR"),
       "Io", "shape or strides are no integers"},
      {"Recursive",
       pickled("]q\x01h\x01"
               "a"),
       "Unsupported", "nested in themselves"},
      {"RecursiveDict", pickled("}q\x01Nh\x01s"), "Unsupported", "nested in themselves"},
      {"RecursiveAttributes",
       pickled("}q\x01h\x01"
               "b"),
       "Unsupported", "nested in themselves"},
      {"Deep", pickled("N" + repeated("\x85", 1'000'000)), "Unsupported", "deeper than 100"},
      {"DeepBySharing", pickled(deep_by_sharing()), "Unsupported", "deeper than 100"},
      {"MillionMarks", pickled(repeated("(", 2'000'000)), "Unsupported", "too many marks"},
      {"MillionsOfValues", pickled(repeated("N", 2'000'000)), "Unsupported", "more than 1048576"},
      {"MillionsOfLists", pickled("]" + repeated("]a", 3'000'000)), "Unsupported",
       "more than 2097152 values"},
      {"MillionsRemembered",
       [] {
         std::string text = "N";
         for (std::uint64_t i = 0; i < 5'000'000; ++i) text += "r" + little(i, 4);
         return pickled(text);
       }(),
       "Unsupported", "more than 4194304 remembered values"},
      {"CopiesOfASet",
       pickled("]q\x01(" + repeated("K\x01", 1'000'000) + "e(" +
               repeated(pickled_global("__builtin__", "set") + "h\x01\x85R", 1000) + "t"),
       "Unsupported", "more than 4194304 values in lists"},
      {"AppendedItems",
       pickled("]q\x01(" + repeated("h\x01", 1000) + "e" +
               repeated("h\x01"
                        "a",
                        5'000'000)),
       "Unsupported", "more than 4194304 values in lists"},
      {"CopiesOfArguments",
       pickled(pickled_global("torch._tensor", "_rebuild_from_type_v2") + "q\x01(" +
               pickled_global("torch._utils", "_rebuild_tensor_v2") +
               pickled_global("torch", "Tensor") + "(" + pickled_storage("0", 2) + pickled_int(0) +
               "))" + repeated("N", 1'000'000) + "t}tq\x02" + repeated("h\x01h\x02R", 1000)),
       "Io", "too many arguments"},
      {"CopiesOfBytes",
       pickled(pickled_text(std::string(10'000'000, 'a')) + "q\x01(" +
               repeated(pickled_global("_codecs", "encode") + "h\x01\x85R", 1000) + "t"),
       "Unsupported", "texts of more than"},
  };
}

class BadPickleTest : public ::testing::TestWithParam<BadPickle> {};

TEST_P(BadPickleTest, IsRefused) {
  const BadPickle& bad = GetParam();
  const std::string file = torch_file(bad.pickle, {little(0x3f800000, 4) + little(0x40000000, 4)});
  const CheapScope cheap;
  try {
    parse(file);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(to_string(error.code()), std::string(bad.code)) << error.what();
    EXPECT_HAS(error.what(), bad.message);
  }
}

INSTANTIATE_TEST_SUITE_P(Each, BadPickleTest, ::testing::ValuesIn(bad_pickles()),
                         [](const auto& info) { return std::string(info.param.name); });

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

// --- Bad archives ----------------------------------------------------------------------------------

struct BadZip {
  const char* name;
  std::string file;
  const char* code;
  const char* message;
};

std::vector<BadZip> bad_zips() {
  const std::string pickle = pickled(pickled_tensor(kFloats, {2}, {1}));
  const std::string data(8, '\x01');
  const auto with = [&](std::size_t part, auto change) {
    std::vector<ZipPart> parts = torch_parts(pickle, {data});
    change(parts[part]);
    return zip(parts);
  };
  const auto ending = [&](const ZipEnd& end) { return zip(torch_parts(pickle, {data}), end); };
  const auto parts_of = [&](std::vector<ZipPart> parts) { return zip(parts); };
  const std::string good = torch_file(pickle, {data});
  std::string long_name(5000, 'n');
  return {
      {"Empty", "", "Io", "does not begin like a file of torch.save"},
      {"Text", "hello, world, this is no archive", "Io", "does not begin like"},
      {"StartAlone", "PK\x03\x04", "Io", "4 bytes are too few for a zip archive"},
      {"CutOff", good.substr(0, good.size() - 30), "Io", "no zip directory at its end"},
      {"ZerosAtTheEnd", good + std::string(100'000, '\0'), "Io", "no zip directory at its end"},
      {"NoPickle", parts_of({{"a/version", "3\n"}}), "Io", "record \"a/data.pkl\" is missing"},
      {"PickleInTheRoot", parts_of({{"data.pkl", pickle}, {"version", "3"}}), "Io",
       "a zip archive without folders"},
      {"NoVersion", parts_of({{"a/data.pkl", pickle}}), "Io", "record \"a/version\" is missing"},
      {"TorchScript",
       parts_of({{"a/data.pkl", pickle}, {"a/version", "3"}, {"a/constants.pkl", ""}}),
       "Unsupported", "a TorchScript program"},
      {"EscapesInANames", parts_of({{"a/\x1b[2J", ""}, {"a/\x1b[2J", ""}}), "Io",
       "called \"a/?[2J\""},
      {"TwoRoots", parts_of({{"b/version", "3"}, {"a/data.pkl", pickle}, {"a/version", "3"}}), "Io",
       "record \"b/data.pkl\" is missing"},
      {"BigEndian", parts_of({{"a/data.pkl", pickle}, {"a/version", "3"}, {"a/byteorder", "big"}}),
       "Unsupported", "written by a big-endian machine"},
      {"RecordTwice", parts_of({{"a/data.pkl", pickle}, {"a/data.pkl", pickle}}), "Io",
       "two zip records are called \"a/data.pkl\""},
      {"Encrypted", with(0, [](ZipPart& p) { p.flags = 1; }), "Unsupported",
       "record \"a/data.pkl\" is encrypted"},
      {"Compressed", with(2, [](ZipPart& p) { p.method = 8; }), "Unsupported",
       "record \"a/data/0\" is compressed"},
      {"PickleCrc", with(0, [](ZipPart& p) { p.crc_change = 1; }), "Io",
       "checksum of record \"a/data.pkl\" does not match"},
      {"StorageCrc", with(2, [](ZipPart& p) { p.crc_change = 1; }), "Io",
       "checksum of record \"a/data/0\" does not match"},
      {"LocalName", with(2, [](ZipPart& p) { p.local_name = "a/data/1"; }), "Io",
       "is not \"a/data/0\""},
      {"LongName", with(2, [&](ZipPart& p) { p.name = long_name; }), "Io",
       "a zip record has a name of 5000 bytes"},
      {"SizePastTheEnd", with(3, [](ZipPart& p) { p.size_change = 100; }), "Io",
       "reaches outside the archive's data"},
      {"SizeOverTheNext", with(2, [](ZipPart& p) { p.size_change = 4; }), "Io", "overlap"},
      {"SizeHuge",
       with(2, [](ZipPart& p) { p.in64 = true, p.size_change = std::uint64_t{1} << 62; }), "Io",
       "of 4611686018427387912 bytes"},
      {"OffsetPastTheEnd", with(2, [](ZipPart& p) { p.offset_change = 1 << 20; }), "Io",
       "outside the archive's data"},
      {"OffsetHuge", with(2, [](ZipPart& p) { p.in64 = true, p.offset_change = ~0ull << 8; }), "Io",
       "outside the archive's data"},
      {"OffsetBeside", with(2, [](ZipPart& p) { p.offset_change = 1; }), "Io",
       "no record \"a/data/0\" at"},
      {"DirectoryPastTheEnd", ending({.begin_change = 1000}), "Io", "is not inside the file"},
      {"DirectoryTooLong", ending({.bytes_change = 1000}), "Io", "is not inside the file"},
      {"DirectoryBeside", ending({.bytes_change = ~0ull, .begin_change = 1}), "Io",
       "no zip entry where the directory has one"},
      {"EntryMissing", ending({.entries_change = ~0ull}), "Io",
       "the directory is longer than its entries"},
      {"EntryTooMany", ending({.entries_change = 1}), "Io", "zip entr"},
      {"MoreEntriesThanBytes", ending({.entries_change = 60000}), "Io", "zip entries in"},
      {"Locator", ending({.in64 = true, .locator_change = 4}), "Io", "is not inside the file"},
      {"LocatorBack", ending({.in64 = true, .locator_change = ~0ull - 3}), "Io",
       "no 64-bit end of the zip directory where it should be"},
      {"Entries64", ending({.entries_change = std::uint64_t{1} << 60, .in64 = true}), "Io",
       "zip entries in"},
      {"Directory64", ending({.bytes_change = std::uint64_t{1} << 63, .in64 = true}), "Io",
       "is not inside the file"},
  };
}

class BadZipTest : public ::testing::TestWithParam<BadZip> {};

TEST_P(BadZipTest, IsRefused) {
  const BadZip& bad = GetParam();
  const CheapScope cheap;
  try {
    parse(bad.file);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(to_string(error.code()), std::string(bad.code)) << error.what();
    EXPECT_HAS(error.what(), bad.message);
  }
}

INSTANTIATE_TEST_SUITE_P(Each, BadZipTest, ::testing::ValuesIn(bad_zips()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Pickle, AnErrorNamesFileAndPlace) {
  TempFolder folder;
  const std::string path = folder.path("a.pth");
  write_file(path,
             torch_file(pickled("}" + pickled_text("model") + "}" + pickled_text("fc.weight") +
                                pickled_tensor(kFloats, {2}, {1}) + "ss")));
  EXPECT_WEFT_ERROR(load_pickle(path), Io, path + ": storage \"0\" is missing");
  EXPECT_WEFT_ERROR(load_pickle(path), Io, "in \"fc.weight\", \"model\"");
  EXPECT_WEFT_ERROR(load_pickle(folder.path("no.pth")), Io, folder.path("no.pth"));
}

TEST(Pickle, ASecondRootIsNotRead) {
  std::vector<ZipPart> parts = torch_parts(pickled("K\x01"));
  parts.push_back({"b/data.pkl", pickled("K\x02")});
  parts.push_back({"b/version", "3"});
  EXPECT_EQ(parse(zip(parts)).integer(), 1);
}

TEST(Pickle, RecordsThatAreNotUsedMayBeCompressed) {
  std::vector<ZipPart> parts = torch_parts(pickled("K\x01"));
  parts.push_back({.name = "a/notes", .data = "xx", .method = 8});
  EXPECT_EQ(parse(zip(parts)).integer(), 1);
}

// What Python does not take for a number or a text is no value.
static_assert(std::is_constructible_v<PickleValue, unsigned long>);
static_assert(std::is_constructible_v<PickleValue, long long>);
static_assert(!std::is_constructible_v<PickleValue, int*>);
static_assert(!std::is_constructible_v<PickleValue, std::nullptr_t>);

TEST(Pickle, AValueIsMadeOfAnyInteger) {
  EXPECT_EQ(PickleValue(std::size_t{7}).integer(), 7);
  EXPECT_EQ(PickleValue(7u).integer(), 7);
  EXPECT_EQ(PickleValue(static_cast<std::uint8_t>(200)).integer(), 200);
  EXPECT_EQ(PickleValue(-7ll).integer(), -7);
  EXPECT_EQ(PickleValue(2.5f).real(), 2.5);
  EXPECT_WEFT_ERROR((void)PickleValue(~std::uint64_t{0}), InvalidArgument,
                    "18446744073709551615 does not fit 64 bits with a sign");
}

TEST(Pickle, AValueSaysWhatItIs) {
  const PickleValue v = PickleValue::dict({{"a", 1}, {2, PickleValue::list({})}});
  EXPECT_WEFT_ERROR(v.at("b"), InvalidArgument, "no key \"b\"; there are \"a\", 2");
  EXPECT_WEFT_ERROR(v.at("a").tensor(), InvalidArgument, "type int, not tensor");
  EXPECT_WEFT_ERROR(v.at(2).entries(), InvalidArgument, "type list, not dict");
  EXPECT_WEFT_ERROR(v.items(), InvalidArgument, "type dict, not list");
  EXPECT_WEFT_ERROR((void)PickleValue{Tensor()}, InvalidArgument, "an undefined tensor");
}

}  // namespace
}  // namespace weft::io
