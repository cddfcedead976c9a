"""Ask a model: one question, several, and one whose answer is shown while it is written."""

from pathlib import Path

from lib.inference import (
    GenerationSettings,
    build_text_generator,
    generate_math_solution,
    save_prompt_and_response,
)

generator = build_text_generator("data/models/export")

solution = generate_math_solution(
    "What is 15 * 23?", generator, max_new_tokens=200, temperature=0.9
)
print(solution.reasoning, solution.answer)
save_prompt_and_response(
    Path("solutions.jsonl"), prompt=solution.prompt, response=solution.completion
)

greedy = GenerationSettings(temperature=0, max_new_tokens=100)
for each in generator.generate(["What is 2 + 2?", "What is 3 * 4?"], greedy):
    print(each.answer)

solution = generator.stream(
    "What is 15 * 23?", greedy, show=lambda piece: print(piece, end="", flush=True)
)
