#pragma once
// What tally inspect finds out about a model file; how it is shown is the business of inspect_text.cc and
// inspect_json.cc.

#include "engine/engine.h"
#include "gguf/gguf.h"
#include "kernels/kernels.h"
#include "model/spec.h"
#include "text/output.h"
#include "text/tokenizer.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tally::apps {

// The tensors of one type.
struct TypeUse {
  uint64_t tensors = 0, elements = 0, bytes = 0;
};

struct KvCost {
  std::string_view codec;
  double token_bytes = 0;      // of all layers
  uint64_t context_bytes = 0;  // of one sequence as long as the model's context
};

// Layers that differ in nothing.
struct LayerGroup {
  std::string words;
  std::vector<uint32_t> layers;  // ascending
};

struct TemplateFinding {
  std::string_view source;           // empty: the file has none
  std::optional<std::string> error;  // why it cannot be rendered, with line and column
  bool shows_tools = false;
  text::OutputFormat output;  // calls and thoughts, as serve would find them
};

struct ModelFinding {
  std::optional<model::ModelSpec> spec;
  std::vector<std::string> words;  // the spec in sentences
  std::vector<LayerGroup> layers;
  std::optional<uint64_t> weight_bytes;  // packed
  std::vector<KvCost> kv;
  std::vector<std::string> unused;  // tensors that nothing reads, escaped
};

// Everything that is shown. Views point into the file.
struct Inspection {
  std::string architecture;  // escaped; empty if the file does not say
  std::string name;          // escaped
  uint64_t parameters = 0;
  std::map<std::string_view, TypeUse> types;
  ModelFinding model;
  std::optional<text::Tokenizer> tokenizer;
  TemplateFinding chat_template;
  std::string_view isa;                        // asked for
  std::map<std::string, std::string> kernels;  // family -> the tier that would run, "none" if nothing does
  std::vector<engine::Tuning> tuning;          // what an earlier start of this machine measured
  std::vector<std::string> odd;                // one line each
  std::optional<base::Error> refused;          // why serve and run would not take the file
  bool vocabulary_only = false;
};

Inspection inspect_file(const gguf::File& file, const kernels::KernelTable& table);

// The spec as a few sentences, and its layers in groups of equal ones.
std::vector<std::string> spec_words(const gguf::File& file, const model::ModelSpec& spec);
std::vector<LayerGroup> layer_groups(const model::ModelSpec& spec);
// What a user should know about the file before relying on it.
std::vector<std::string> odd_lines(const gguf::File& file, const Inspection& found);
// "0-4, 6-10"
std::string ranges_text(const std::vector<uint32_t>& ascending);

// Which parts that grow with the file are shown.
struct TextOptions {
  bool tensors = false;
};
void print_inspection(const gguf::File& file, const Inspection& found, const TextOptions& options);
void print_inspection_json(const gguf::File& file, const Inspection& found);

}  // namespace tally::apps
