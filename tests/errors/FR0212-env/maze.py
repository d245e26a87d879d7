class Maze(
