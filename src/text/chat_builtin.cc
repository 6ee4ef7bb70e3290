#include "text/chat_builtin.h"

#include <array>

namespace tally::text {
namespace {

// Every template takes content as a string or as a list of text parts; other parts are refused.

constexpr std::string_view kChatml = R"jinja(
{%- macro text_of(content) -%}
  {%- if content is string -%}
    {{ content }}
  {%- else -%}
    {%- for part in content or [] -%}
      {%- if part.type != 'text' -%}
        {{ raise_exception('Only text content is supported') }}
      {%- endif -%}
      {{ part.text }}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
  {{ '<|im_start|>' + message.role + '\n' + text_of(message.content) + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{ '<|im_start|>assistant\n' }}
{%- endif -%}
)jinja";

// Gemma has no system role: its text opens the first user turn.
constexpr std::string_view kGemma = R"jinja(
{%- macro text_of(content) -%}
  {%- if content is string -%}
    {{ content | trim }}
  {%- else -%}
    {%- for part in content or [] -%}
      {%- if part.type != 'text' -%}
        {{ raise_exception('Only text content is supported') }}
      {%- endif -%}
      {{ part.text | trim }}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{{ bos_token }}
{%- set ns = namespace(before='', turns=0) -%}
{%- for message in messages -%}
  {%- if message.role == 'system' or message.role == 'developer' -%}
    {%- if not loop.first -%}
      {{ raise_exception('A system message must be the first message') }}
    {%- endif -%}
    {%- set ns.before = text_of(message.content) + '\n\n' -%}
  {%- else -%}
    {%- if message.role != ('user' if ns.turns % 2 == 0 else 'assistant') -%}
      {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif -%}
    {%- set ns.turns = ns.turns + 1 -%}
    {{ '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\n' }}
    {{- ns.before + text_of(message.content) + '<end_of_turn>\n' }}
    {%- set ns.before = '' -%}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{ '<start_of_turn>model\n' }}
{%- endif -%}
)jinja";

constexpr std::string_view kLlama3 = R"jinja(
{%- macro text_of(content) -%}
  {%- if content is string -%}
    {{ content | trim }}
  {%- else -%}
    {%- for part in content or [] -%}
      {%- if part.type != 'text' -%}
        {{ raise_exception('Only text content is supported') }}
      {%- endif -%}
      {{ part.text }}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{{ bos_token }}
{%- for message in messages -%}
  {{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + text_of(message.content) + '<|eot_id|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif -%}
)jinja";

constexpr std::array<BuiltinTemplate, 3> kTemplates = {
    {{"chatml", kChatml}, {"gemma", kGemma}, {"llama3", kLlama3}}};

}  // namespace

std::span<const BuiltinTemplate> builtin_templates() { return kTemplates; }

}  // namespace tally::text
