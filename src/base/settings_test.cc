#include "base/settings.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

namespace tally::base {
namespace {

constexpr SettingRow kRows[] = {
    {"port", SettingType::kUint, "8000", 0, 65535, "", "serve", true, "TCP port"},
    {"memory", SettingType::kBytes, "", 1, 0x1p50, "", "serve run", true, "cap"},
    {"drain-timeout", SettingType::kDuration, "30s", 0, 86'400'000, "", "serve", true, "drain"},
    {"kv-type", SettingType::kChoice, "int8", 0, 0, "f32|bf16|int8", "serve run", true, "codec"},
    {"prefix-cache", SettingType::kOnOff, "on", 0, 0, "", "serve run", true, "sharing"},
    {"receipt", SettingType::kSwitch, "off", 0, 0, "", "run", true, "print it"},
    {"temperature", SettingType::kFloat, "1", 0, 2, "", "run", true, "heat"},
    {"speculate", SettingType::kChoice, "off", 0, 0, "off", "serve", false, "drafts"},
    {"allowed-hosts", SettingType::kList, "", 0, 0, "", "serve", true, "names"},
};

using Map = std::map<std::string, std::string>;

std::string write_file(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

TEST(Settings, PrecedenceAndSources) {
  const std::string file =
      write_file("ok.json", R"({"port": 1, "kv-type": "bf16", "prefix-cache": false, "memory": "2GiB"})");
  const auto s = resolve_settings(kRows, "serve", {{"port", "3"}},
                                  {{"TALLY_PORT", "2"}, {"TALLY_KV_TYPE", "f32"}}, file);
  ASSERT_TRUE(s) << s.error().message;
  EXPECT_EQ(s->number("port"), 3u);
  EXPECT_EQ(s->text("kv-type"), "f32");
  EXPECT_FALSE(s->on("prefix-cache"));
  EXPECT_EQ(s->number("memory"), uint64_t{2} << 30);
  EXPECT_EQ(s->number("drain-timeout"), 30'000u);
  EXPECT_EQ(s->values().find("port")->second.source, SettingSource::kCommandLine);
  EXPECT_EQ(s->values().find("kv-type")->second.source, SettingSource::kEnvironment);
  EXPECT_EQ(s->values().find("memory")->second.source, SettingSource::kFile);
  EXPECT_FALSE(s->given("drain-timeout"));
}

TEST(Settings, BadValuesNameFlagValueAndWhatIsAllowed) {
  struct Case {
    const char* name;
    const char* value;
  };
  const Case cases[] = {
      {"port", "70000"},        {"port", "-1"},          {"port", "80x"},         {"port", ""},
      {"port", "1e3"},          {"memory", "nan"},       {"memory", "-1G"},       {"memory", "0"},
      {"memory", "1e30"},       {"memory", "1.5XB"},     {"memory", "inf"},       {"kv-type", "int3"},
      {"drain-timeout", "5 h"}, {"prefix-cache", "yes"}, {"drain-timeout", "-1"},
  };
  for (const Case& c : cases) {
    const auto s = resolve_settings(kRows, "serve", {{c.name, c.value}}, {}, "");
    ASSERT_FALSE(s) << c.name << "=" << c.value;
    EXPECT_EQ(s.error().code, ErrorCode::kUsage);
    EXPECT_NE(s.error().message.find(fmt::format("--{}", c.name)), std::string::npos) << s.error().message;
    EXPECT_NE(s.error().message.find(fmt::format("'{}'", c.value)), std::string::npos) << s.error().message;
    EXPECT_NE(s.error().message.find("allowed: "), std::string::npos) << s.error().message;
  }
  const auto unbuilt = resolve_settings(kRows, "serve", {{"speculate", "lookup"}}, {}, "");
  ASSERT_FALSE(unbuilt);
  EXPECT_EQ(unbuilt.error().message, "--speculate is not supported yet");
  const auto env = resolve_settings(kRows, "serve", {}, {{"TALLY_PORT", "x"}}, "");
  ASSERT_FALSE(env);
  EXPECT_NE(env.error().message.find("TALLY_PORT"), std::string::npos);
}

TEST(Settings, BadConfigFiles) {
  struct Case {
    const char* text;
    ErrorCode code;
    const char* says;
  };
  const Case cases[] = {
      {R"({"port": 1, "port": 2})", ErrorCode::kConfig, "twice"},
      {"{\"port\": 1,\n oops}", ErrorCode::kConfig, "line 2"},
      {"{\"port\": \"\xff\"}", ErrorCode::kConfig, "UTF-8"},
      {"[1]", ErrorCode::kConfig, "object"},
      {R"({"prot": 1})", ErrorCode::kUsage, "did you mean port?"},
      {R"({"port": [1]})", ErrorCode::kUsage, "port"},
      {R"({"port": 1.5})", ErrorCode::kUsage, "0..65535"},
  };
  for (const Case& c : cases) {
    const auto s = resolve_settings(kRows, "serve", {}, {}, write_file("bad.json", c.text));
    ASSERT_FALSE(s) << c.text;
    EXPECT_EQ(s.error().code, c.code) << s.error().message;
    EXPECT_NE(s.error().message.find(c.says), std::string::npos) << s.error().message;
  }
  EXPECT_EQ(resolve_settings(kRows, "serve", {}, {}, "/no/such/file").error().code, ErrorCode::kNoInput);
  const std::string big = write_file("big.json", std::string((1 << 20) + 1, ' '));
  EXPECT_EQ(resolve_settings(kRows, "serve", {}, {}, big).error().code, ErrorCode::kConfig);
}

TEST(Settings, UnitsAndNames) {
  EXPECT_EQ(parse_bytes("1.5KiB"), 1536.0);
  EXPECT_EQ(parse_bytes("2GB"), 2e9);
  EXPECT_FALSE(parse_bytes("1k"));
  EXPECT_FALSE(parse_bytes("+1"));
  EXPECT_EQ(parse_duration_ms("250ms"), 250.0);
  EXPECT_EQ(parse_duration_ms("2"), 2000.0);
  EXPECT_FALSE(parse_uint("18446744073709551616"));
  EXPECT_EQ(parse_real("-0.5"), -0.5);
  EXPECT_EQ(variable_name("kv-type"), "TALLY_KV_TYPE");
  const std::string_view names[] = {"max-model-len", "memory", "port"};
  EXPECT_EQ(nearest_name("max-model-length", names), "max-model-len");
  EXPECT_FALSE(nearest_name("zzzzzz", names));
}

TEST(Settings, PagesShowEveryRow) {
  const std::string page = settings_page(kRows);
  for (const SettingRow& row : kRows)
    EXPECT_NE(page.find(fmt::format("`--{}`", row.name)), std::string::npos);
  const std::string help = settings_help(kRows, "run");
  EXPECT_NE(help.find("--receipt"), std::string::npos);
  EXPECT_EQ(help.find("--port"), std::string::npos);
}

}  // namespace
}  // namespace tally::base
